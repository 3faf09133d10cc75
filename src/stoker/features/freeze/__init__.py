"""What makes a run repeatable: the code that was submitted, and the packages that it ran with."""
