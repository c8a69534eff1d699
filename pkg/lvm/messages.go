package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// LVM changes what is in a thin pool in three steps. It commits metadata with a
// message for the pool and the next number of its transactions; it sends the message
// and that number to the kernel, which commits both; it commits metadata without the
// message. What a command that was killed, or the power, left in between, LVM
// (2.03.16) deals with at the next command, but for two things:
//
//   - The kernel has the number, the metadata have the message still. Making a volume
//     takes the message back first. Removing one adds its own to it, for which the
//     number is not raised; and because the kernel has that number, all messages
//     count as sent. The pool keeps what was removed, and a new volume that gets its
//     number shows what it held, as the kernel's "exists already" is expected of a
//     message that may be sent twice.
//   - The kernel has made a snapshot and has not got the number. "Exists already" is
//     not expected of snapshots: no command on the pool succeeds ever again.
//
// (detach_pool_lv, attach_pool_message, update_pool_lv, _thin_pool_node_send_messages,
// dm_tree_node_add_thin_pool_message.)

// messages finishes what a command that was killed left of messages for thin pools.
type messages struct{ disks *disks }

// finish finishes what was left of messages for pools, where LVM could not, and
// returns the pools to which LVM will not send what it adds to a message. It is about
// the pools that are named, or that have the volumes that are.
//
// Only what failed leaves messages: nothing is read but after a Scan, which follows
// that, until there are none.
func (m *messages) finish(group string, names ...string) (unsent []ondisk.Pool, err error) {
	if !m.disks.view(group).messages {
		return nil, nil
	}
	waiting, err := committed(m.disks, group, ondisk.PoolsWithMessages)
	if err != nil {
		return nil, err
	}
	if len(waiting) == 0 {
		m.disks.messagesLeft(group, false)
		return nil, nil
	}
	// Another command, an administrator's for example, may be sending them.
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if waiting, err = committed(m.disks, group, ondisk.PoolsWithMessages); err != nil {
		return nil, err
	}
	for _, p := range waiting {
		if !slices.ContainsFunc(names, func(name string) bool { return name == p.Name || p.Numbers[name] != 0 }) {
			continue
		}
		isUnsent, err := m.finishPool(group, &p)
		if err != nil {
			return nil, fmt.Errorf("thin pool %q of volume group %q, which has messages that were not finished: %w", p.Name, group, err)
		}
		if isUnsent {
			unsent = append(unsent, p)
		}
	}
	return unsent, nil
}

// finishPool reports whether the kernel has the pool's number: then LVM does not send
// what it adds. If it has not and was sent the making of a snapshot, it is sent the rest.
func (m *messages) finishPool(group string, p *ondisk.Pool) (unsent bool, err error) {
	device, number, ok, err := m.transaction(group, p.Name)
	if err != nil || !ok {
		return false, err // a pool that failed is LVM's to report
	}
	if number == p.Transaction {
		return true, nil
	}
	made := 0
	for _, v := range p.Creates {
		if !p.Snapshots[v] {
			continue
		}
		is, err := isMade(device, p.Numbers[v])
		if err != nil {
			return false, err
		}
		if is {
			made++
		}
	}
	if made == 0 || number+1 != p.Transaction {
		return false, nil // LVM knows what to do
	}
	if made < len(p.Creates) || len(p.Deletes) > 0 {
		return false, fmt.Errorf("some of %d messages were sent, which LVM sends one by one", len(p.Creates)+len(p.Deletes))
	}
	return true, send(device, 0, "set_transaction_id %d %d", number, p.Transaction)
}

// transaction asks the kernel for a pool's device and the number of its last transaction.
// ok is false when the pool failed.
func (m *messages) transaction(group, pool string) (device string, number uint64, ok bool, err error) {
	device, params, err := m.disks.poolStatus(group, pool)
	if err != nil {
		return "", 0, false, err
	}
	word, _, _ := strings.Cut(params, " ")
	number, parseErr := strconv.ParseUint(word, 10, 64)
	return device, number, parseErr == nil, nil
}

// sendUnsent sends the group's pools the messages that they were not sent: LVM would do so at the
// next command that changes the pool, and until then what was removed takes its space, and what was made
// cannot be activated. The making of a snapshot is left to LVM, which suspends its origin for it: unmade are
// those that their pools do not have; with an error it is not known which those are. The metadata must be
// durable. While a command is under way, which sends its messages itself, nothing is done.
func (m *messages) sendUnsent(group string) (unmade []string, err error) {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return nil, err
	}
	defer unlock()
	waiting, err := committed(m.disks, group, ondisk.PoolsWithMessages)
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, p := range waiting {
		names, err := m.sendPool(group, &p)
		unmade = append(unmade, names...)
		if err != nil {
			failed = append(failed, fmt.Errorf("thin pool %q of volume group %q: %w", p.Name, group, err))
		}
	}
	return unmade, errors.Join(failed...)
}

// sendPool sends one pool what it was not sent, or returns the snapshots among that which it does not have.
func (m *messages) sendPool(group string, p *ondisk.Pool) (unmade []string, err error) {
	device, number, ok, err := m.transaction(group, p.Name)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errors.New("the kernel reports that it has failed")
	case number+1 != p.Transaction:
		return nil, nil
	}
	snapshots := slices.DeleteFunc(slices.Clone(p.Creates), func(v string) bool { return !p.Snapshots[v] })
	if len(snapshots) == 0 {
		return nil, sendAll(device, p, number)
	}
	for _, v := range snapshots {
		made, err := isMade(device, p.Numbers[v])
		if err != nil {
			return unmade, err
		}
		if !made {
			unmade = append(unmade, v)
		}
	}
	return unmade, nil
}

// sendAll sends a pool, which has that number, all of its messages, of which none makes a snapshot.
func sendAll(device string, p *ondisk.Pool, number uint64) error {
	for _, made := range p.Creates {
		// LVM takes what exists already for what it made.
		if err := send(device, unix.EEXIST, "create_thin %d", p.Numbers[made]); err != nil {
			return err
		}
	}
	for _, removed := range p.Deletes {
		if err := send(device, unix.ENODATA, "delete %d", removed); err != nil {
			return err
		}
	}
	return send(device, 0, "set_transaction_id %d %d", number, p.Transaction)
}

// isMade reports whether a pool has a volume of a number.
func isMade(device string, number int64) (bool, error) {
	// Where the number is taken, that is the answer, and no volume is this origin.
	err := send(device, unix.ENODATA, "create_snap %d %d", number, int64(ondisk.NoVolume))
	if errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

// deleteRemoved deletes from the pools those of the volumes that LVM has removed.
func (m *messages) deleteRemoved(group string, pools []ondisk.Pool, names []string) error {
	if len(pools) == 0 {
		return nil
	}
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	left, err := committed(m.disks, group, ondisk.VolumeNames)
	if err != nil {
		return err
	}
	for _, p := range pools {
		for _, v := range names {
			number, in := p.Numbers[v]
			if !in || left[v] {
				continue
			}
			device, _, err := m.disks.poolStatus(group, p.Name)
			if err == nil {
				err = send(device, unix.ENODATA, "delete %d", number)
			}
			if err != nil {
				return fmt.Errorf("removed thin volume %q of volume group %q is still in its pool: %w", v, group, err)
			}
		}
	}
	return nil
}

// send sends a message to a pool, of which one error is as good as none.
func send(device string, expected unix.Errno, format string, args ...any) error {
	err := devmapper.Message(device, fmt.Sprintf(format, args...))
	if expected != 0 && errors.Is(err, expected) {
		return nil
	}
	return fromKernel(err)
}
