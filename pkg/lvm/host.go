package lvm

import (
	"errors"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/command"
)

// Host is the machine's LVM. Each of the types that it is made of has one job: disks knows where the groups
// are and reads there, commands runs what changes groups, and what the interfaces of this
// package ask for is built on these two.
//
// It looks at the devices of the groups it was asked about and at no others:
// the first Scan, and one that misses something, looks at every block device
// that does not lie on a volume, and remembers where the groups' devices were.
// Host is safe for concurrent use within the rules of Groups.
type Host struct {
	*disks
	*volumes
	*thinPools
	inspection
	encryption
	provisioning

	commands *commands
	// answers gets an element when a device answers again that did not, or is nil.
	answers chan<- struct{}
}

var (
	_ Groups  = (*Host)(nil)
	_ Devices = (*Host)(nil)
)

// NewHost returns the machine's LVM, driven by the given runner. It fails when the runner has no SystemDir:
// commands that run under a lock which is held for them take their own locks there.
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

// Stuck counts what was abandoned and still waits in the kernel for a device that does not
// answer: commands that were killed, reads, and flushes. Each keeps a thread or a process.
// It is safe for concurrent use.
func (h *Host) Stuck() int {
	return command.Stuck() + h.reads.Stuck() + h.layers.Stuck() + h.commands.flushes.Stuck()
}

// Notify sends on events, which should hold an element, when a block device answers
// again that did not: that is no event of the kernel's. It is called before any
// other method.
func (h *Host) Notify(events chan<- struct{}) { h.answers = events }

// answered passes on that a device answers again.
func (h *Host) answered() {
	if h.answers == nil {
		return
	}
	select {
	case h.answers <- struct{}{}:
	default:
	}
}
