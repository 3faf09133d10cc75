"""What lies behind the verbs that change jobs or wait for them."""
