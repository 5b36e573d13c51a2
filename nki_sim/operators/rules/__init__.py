"""Rules for single instructions, named by entries of the operator table."""
