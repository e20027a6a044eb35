"""What `twinbus serve` does besides serving: its first-steps text, and a pair of servers."""
