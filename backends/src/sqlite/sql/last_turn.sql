SELECT tenant FROM turns WHERE release = ?1 AND class = ?2
