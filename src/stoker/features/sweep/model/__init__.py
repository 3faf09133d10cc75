"""A sweep as pure data: spaces, points, objectives, rules and results."""
