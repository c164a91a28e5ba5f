"""Model declarations: a config mapping, a weight-name table and a forward in terms of layers and ops."""
