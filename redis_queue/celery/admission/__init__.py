"""Flow control of an app: which flows a call belongs to, and the gate where its message waits."""
