"""The command line. Every module here is imported only when its command runs, and heavy imports happen inside `run`."""
