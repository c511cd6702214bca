"""The cost of many waiting entries: measured, calculated and simulated."""
