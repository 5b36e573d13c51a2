"""What one instruction may be: rules that entries of the operator table name."""
