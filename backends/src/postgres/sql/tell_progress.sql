SELECT tell(tenant, webhook, 'batch.progress', NULL, id, told, store_now($1)) FROM batches WHERE id = $2
