"""What a comparison is meant to be: declared in a design file or on the command line, else inferred."""
