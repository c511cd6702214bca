"""Lost and duplicate messages when consumers are killed: stock kombu, leases, atomic fetch."""
