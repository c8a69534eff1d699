package journal

var bucketPools = []byte("pools")

// PoolIntent is the intent to make a thin pool, which takes LVM several commits. It exists while
// LVM works, and identifies the remnants of a killed command.
type PoolIntent struct {
	Group string `json:"group"`
	Pool  string `json:"pool"`
	// UUID and Seqno are the group's before the command.
	UUID  string `json:"uuid"`
	Seqno uint64 `json:"seqno"`
	// Metadata is the size of the pool's metadata, and of its spare, in bytes.
	Metadata int64 `json:"metadata"`
	// Unnamed are the volumes that had default names of LVM.
	Unnamed []string `json:"unnamed,omitempty"`
}

// PoolKey returns the key of a pool's intent.
func PoolKey(group, pool string) string { return group + "/" + pool }

// PoolIntents returns all intents, by PoolKey.
func (j *Journal) PoolIntents() (map[string]*PoolIntent, error) {
	return readBucket[*PoolIntent](j, bucketPools, fail("thin pool"))
}

// PutPoolIntent stores an intent, replacing one for the same pool.
func (j *Journal) PutPoolIntent(p *PoolIntent) error {
	return j.Update(func(t *Tx) error { return t.put(bucketPools, PoolKey(p.Group, p.Pool), p) })
}

// RemovePoolIntent removes an intent.
func (j *Journal) RemovePoolIntent(p *PoolIntent) error {
	return j.Update(func(t *Tx) error { return t.remove(bucketPools, PoolKey(p.Group, p.Pool)) })
}
