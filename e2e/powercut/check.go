package powercut

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// settleBound is how long lvmd may take to wipe and remove what is deleted.
const settleBound = 2 * time.Minute

// check holds the ledger against what lvmd says after a boot, and asks again for
// what was not acknowledged. It returns everything that is wrong.
func (r *rig) check(ctx context.Context, l *ledger) error {
	list, err := r.lvmd(ctx, "volumes")
	if err != nil {
		return err
	}
	found := map[string]listed{}
	for _, v := range list {
		found[v.Name] = v
	}
	var problems []error
	for _, e := range l.entries {
		v, there := found[e.name]
		delete(found, e.name)
		if err := r.checkOne(ctx, l, e, v, there); err != nil {
			problems = append(problems, err)
		}
	}
	for name, v := range found {
		problems = append(problems, fmt.Errorf("nobody asked for %s: %+v", name, v))
	}
	return errors.Join(problems...)
}

func (r *rig) checkOne(ctx context.Context, l *ledger, e *entry, v listed, there bool) error {
	switch e.stage {
	case asked:
		if err := r.create(ctx, l, e); err != nil {
			return fmt.Errorf("a retry of %s: %w", e.name, err)
		}
	case acknowledged:
		if !there || v.ID != e.id || v.State != "VOLUME_STATE_READY" || v.SizeBytes < e.bytes || len(v.Conditions) > 0 {
			return fmt.Errorf("acknowledged volume %s (%s, %d bytes) is %+v", e.name, e.id, e.bytes, v)
		}
		e.bytes, e.device = v.SizeBytes, v.DevicePath
		if e.written {
			return r.verify(ctx, e)
		}
	case deleting:
		if there {
			return r.remove(ctx, l, e)
		}
		e.stage = deleted
	case deleted:
		if there {
			return fmt.Errorf("deleted volume %s is back: %+v", e.name, v)
		}
	}
	return nil
}

// checkEmpty deletes everything and waits until LVM has nothing left of it.
func (r *rig) checkEmpty(ctx context.Context, l *ledger) error {
	for _, e := range l.entries {
		if e.stage == acknowledged {
			if err := r.remove(ctx, l, e); err != nil {
				return err
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	for {
		volumes, err := r.run(ctx, "lvs", "--noheadings", "-o", "lv_name,lv_tags", "carve")
		if err != nil {
			return err
		}
		c, err := r.class(ctx)
		if err != nil {
			return err
		}
		if strings.TrimSpace(volumes) == "" && c.AvailableBytes == c.TotalBytes {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("left in LVM: %q; %d of %d bytes are available", volumes, c.AvailableBytes, c.TotalBytes)
		case <-time.After(time.Second):
		}
	}
}
