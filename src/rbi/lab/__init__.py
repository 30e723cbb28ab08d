"""Where truth is known, or made: small problems that show what a rule does."""
