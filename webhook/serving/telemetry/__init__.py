"""What the server reports of itself: metrics for Prometheus, and the log."""
