"""What frameworks call things: quantities and roles, one readable file a framework."""
