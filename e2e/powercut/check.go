package powercut

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/carve-csi/carve/e2e/vm/agent"
)

// reclaimTimeout is how long lvmd may take to wipe and remove what is deleted.
const reclaimTimeout = 2 * time.Minute

// check holds the ledger against what lvmd says after a boot, and asks again for
// what was not acknowledged. It returns everything that is wrong.
func (r *rig) check(ctx context.Context, l *ledger) error {
	list, err := r.lvmd(ctx, "volumes")
	if err != nil {
		return err
	}
	snapshots, err := r.lvmd(ctx, "snapshots")
	if err != nil {
		return err
	}
	list = append(list, snapshots...)
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
		problems = append(problems, fmt.Errorf("there was no request for %s: %+v", name, v))
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
		if !there || v.ID != e.id || !v.well() || v.SizeBytes < e.bytes {
			return fmt.Errorf("acknowledged volume %s (%s, %d bytes) is %+v", e.name, e.id, e.bytes, v)
		}
		e.bytes, e.device = v.SizeBytes, v.DevicePath
		if e.written && !e.snapshot {
			if err := r.verify(ctx, e); err != nil {
				return err
			}
			l.acknowledge(survival)
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

// checkEmpty deletes everything and waits until LVM has nothing left of it, and as
// much is available as at the beginning.
func (r *rig) checkEmpty(ctx context.Context, l *ledger, free map[string]int64) error {
	for _, e := range l.entries {
		if e.stage == acknowledged {
			if err := r.remove(ctx, l, e); err != nil {
				return err
			}
		}
	}
	timeout := time.After(reclaimTimeout)
	for {
		volumes, err := r.run(ctx, "lvs", "--noheadings", "-o", "lv_name", "carve")
		if err != nil {
			return err
		}
		now, err := r.freeSpace(ctx)
		if err != nil {
			return err
		}
		if strings.TrimSpace(volumes) == thinPool && maps.Equal(now, free) {
			return nil
		}
		select {
		case <-timeout:
			return fmt.Errorf("left in LVM: %q; available in the classes is %v, and was %v\n%s", volumes, now, free, r.pool(ctx))
		case <-time.After(time.Second):
		}
	}
}

// pool is what the kernel, the pool's metadata and LVM's say of the thin pool.
func (r *rig) pool(ctx context.Context) string {
	// LVM has two names for the pool's device, by whether it has had volumes.
	const script = `exec 2>&1
		dmsetup status --target thin-pool
		pool=$(dmsetup ls --target thin-pool | cut -f 1)
		dmsetup message "$pool" 0 reserve_metadata_snap
		thin_dump --metadata-snap "/dev/mapper/${pool%-tpool}_tmeta"
		dmsetup message "$pool" 0 release_metadata_snap
		vgcfgbackup --file /run/carve.vg carve && cat /run/carve.vg`
	out, err := r.run(ctx, "sh", "-c", script)
	if err != nil {
		return fmt.Sprintf("%s\n%v", out, err)
	}
	return out
}

// readsAsZeroes fails where a device is shorter than size bytes, or one of those
// bytes is not zero or cannot be read.
func (r *rig) readsAsZeroes(ctx context.Context, device string, size int64) error {
	out, err := r.run(ctx, "blockdev", "--getsize64", device)
	if err != nil {
		return err
	}
	have, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if err != nil {
		return fmt.Errorf("the size of %s: %w", device, err)
	}
	if have < size {
		return fmt.Errorf("%w: %s has %d bytes, want %d", errShort, device, have, size)
	}
	var stdout, stderr strings.Builder
	code, err := r.machine.Agent().Run(ctx, agent.Command{
		Argv: []string{"cmp", "-n", strconv.FormatInt(size, 10), device, "/dev/zero"}, Stdout: &stdout, Stderr: &stderr,
	})
	switch {
	case err != nil:
		return err
	case code == 1:
		return fmt.Errorf("%w: %s", errNotZero, stdout.String())
	case code != 0:
		return fmt.Errorf("%w: %s: cmp ends with %d: %s", errRead, device, code, stderr.String())
	}
	return nil
}

// What readsAsZeroes finds.
var (
	errShort   = errors.New("the device is too short")
	errNotZero = errors.New("the device holds something other than zeroes")
	errRead    = errors.New("the device cannot be read")
)
