"""Priority_scheduler."""
