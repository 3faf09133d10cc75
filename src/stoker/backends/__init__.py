"""Where jobs run. Each backend starts attempts, tells what became of them, and stops them."""
