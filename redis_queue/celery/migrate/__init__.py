"""Move delayed tasks between broker and store, when the extension is put into an app or taken out of it."""
