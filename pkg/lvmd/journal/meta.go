package journal

import (
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"github.com/carve-csi/carve/api/config"
	"github.com/carve-csi/carve/api/leadership"
)

var (
	keyLeaders  = []byte("leaders")
	keyBindings = []byte("classes")
)

// Leaders returns the newest leader of each cluster.
func (j *Journal) Leaders() (kept []leadership.Leadership, err error) {
	err = j.db.View(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketMeta).Get(keyLeaders)
		if b == nil {
			return nil
		}
		return json.Unmarshal(b, &kept)
	})
	if err != nil {
		return nil, fmt.Errorf("journal: leaders: %w", err)
	}
	return kept, nil
}

// PutLeaders replaces them.
func (j *Journal) PutLeaders(kept []leadership.Leadership) error {
	return j.Update(func(t *Tx) error { return t.put(bucketMeta, string(keyLeaders), kept) })
}

// Binding has the properties of a device class that must not change while it has volumes.
type Binding struct {
	Groups []string      `json:"groups"`
	Type   config.Layout `json:"type"`
	Medium config.Medium `json:"medium"`
	// Pool is the thin pool's name; empty for other classes.
	Pool string `json:"pool,omitempty"`
}

// Bindings are by class.
type Bindings map[string]Binding

// Bindings returns those of the configuration last in force; nil if there are none, or damaged
// ones.
func (j *Journal) Bindings() (all Bindings, err error) {
	err = j.db.View(func(tx *bbolt.Tx) error {
		if json.Unmarshal(tx.Bucket(bucketMeta).Get(keyBindings), &all) != nil {
			all = nil
		}
		return nil
	})
	return all, err
}

// PutBindings replaces all bindings.
func (t *Tx) PutBindings(all Bindings) error { return t.put(bucketMeta, string(keyBindings), all) }
