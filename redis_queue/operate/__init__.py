"""What people may see and do, for the command line, the dashboard and metrics; it installs no hooks."""
