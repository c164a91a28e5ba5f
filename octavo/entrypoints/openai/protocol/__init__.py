"""What goes over the wire: one msgspec struct a JSON object, by endpoint."""
