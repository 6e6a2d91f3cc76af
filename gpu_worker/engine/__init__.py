"""What generates inside a worker; torch and transformers are imported only here."""
