package lvm

import (
	"errors"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

// Host is the machine's LVM; see the package comment for the types that it embeds. It is safe
// for concurrent use within the rules of Groups.
//
// It looks only at the devices of the groups that it was asked about. The first Scan, and any
// that misses something, looks at every block device that does not lie on a volume.
type Host struct {
	*disks
	*volumes
	*thinPools
	inspection
	encryption
	provisioning

	commands *commands
	// answers may be nil, see Notify.
	answers chan<- struct{}
}

var (
	_ Groups  = (*Host)(nil)
	_ Devices = (*Host)(nil)
)

// NewHost returns the machine's LVM. It fails if r has no SystemDir: a command that runs under
// a lock held for it takes its own locks there.
func NewHost(r *Runner) (*Host, error) {
	if r.SystemDir == "" {
		return nil, errors.New("LVM's system directory is not set")
	}
	d := &disks{groups: map[string]*knownGroup{}}
	c := &commands{runner: r, disks: d, flush: blockdev.Flush}
	v := &volumes{commands: c, disks: d, messages: &messages{disks: d}}
	h := &Host{
		disks: d, volumes: v, thinPools: &thinPools{volumes: v}, commands: c,
		inspection: inspection{d}, provisioning: provisioning{c, d, v},
	}
	d.reads.Answered, d.layers.Answered, c.flushes.Answered = h.answered, h.answered, h.answered
	return h, nil
}

// Stuck counts the killed commands, reads and flushes that still wait in the kernel for an
// unresponsive device. Each keeps a thread or a process. It is safe for concurrent use.
func (h *Host) Stuck() int {
	return command.Stuck() + h.reads.Stuck() + h.layers.Stuck() + h.commands.flushes.Stuck()
}

// Notify sends on events when an unresponsive device answers again, for which the kernel has no
// event. It does not block, so events should be buffered. Call it before any other method.
func (h *Host) Notify(events chan<- struct{}) { h.answers = events }

func (h *Host) answered() {
	if h.answers == nil {
		return
	}
	select {
	case h.answers <- struct{}{}:
	default:
	}
}
