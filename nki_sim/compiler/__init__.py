"""What the vendor's compiler makes of a traced program before it runs."""
