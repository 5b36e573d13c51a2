"""Model of the vendor's compiler: how it changes a traced program before it runs."""
