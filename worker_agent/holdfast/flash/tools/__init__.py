"""Programs that read committed steps: inspect, diff, convert. They change nothing they read."""
