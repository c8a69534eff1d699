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

// LVM changes a thin pool in three steps. It commits metadata with a message for the pool and
// the pool's next transaction number; it sends the message and the number to the kernel, which
// commits both; it commits metadata without the message. After a kill or a power cut in
// between, LVM (2.03.16) recovers at the next command, with two exceptions:
//
//   - The kernel has the number, and the metadata still has the message. Creating a volume
//     takes the message back first. Removing one adds its own message without raising the
//     number, and as the kernel has that number, LVM takes all messages for sent. The pool
//     keeps the removed volume, and a new volume that gets its number shows its contents: LVM
//     expects the kernel's "exists already" for a message that it may send twice.
//   - The kernel has created a snapshot but lacks the number. LVM does not expect "exists
//     already" for snapshots, so every further command on the pool fails.
//
// (detach_pool_lv, attach_pool_message, update_pool_lv, _thin_pool_node_send_messages,
// dm_tree_node_add_thin_pool_message.)

// messages sends thin pools the messages that a killed command left unsent or unacknowledged.
type messages struct{ disks *disks }

// finish finishes messages that LVM could not finish, for the named pools and the pools of the
// named volumes. It returns the pools to which LVM will not send what it adds to a message.
//
// Only failed commands leave messages, and a Scan follows those. So finish reads the metadata
// only after a Scan, until no messages are left.
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
	// Another command may be sending them.
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

// finishPool reports whether the kernel already has the pool's transaction number: then LVM
// does not send what it adds. If the kernel lacks only the number of a snapshot, finishPool
// sends that.
func (m *messages) finishPool(group string, p *ondisk.Pool) (unsent bool, err error) {
	device, number, ok, err := m.transaction(group, p.Name)
	if err != nil || !ok {
		return false, err // LVM reports a failed pool.
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
		return false, nil // LVM can recover from this itself.
	}
	if made < len(p.Creates) || len(p.Deletes) > 0 {
		return false, fmt.Errorf("some of %d messages were sent, which LVM sends one by one", len(p.Creates)+len(p.Deletes))
	}
	return true, send(device, 0, "set_transaction_id %d %d", number, p.Transaction)
}

// transaction returns a pool's device and the kernel's last transaction number. ok is false if
// the pool failed.
func (m *messages) transaction(group, pool string) (device string, number uint64, ok bool, err error) {
	device, params, err := m.disks.poolStatus(group, pool)
	if err != nil {
		return "", 0, false, err
	}
	word, _, _ := strings.Cut(params, " ")
	number, parseErr := strconv.ParseUint(word, 10, 64)
	return device, number, parseErr == nil, nil
}

// sendUnsent sends the group's pools their unsent messages. LVM would only do so at the next
// command that changes the pool; until then removed volumes take space, and new ones cannot be
// activated. LVM must create snapshots, as it suspends the origin for that: unmade are those
// that their pools lack, not all of them with an error. The metadata must be durable.
// sendUnsent returns ErrBusy while a command holds the group, which sends its messages itself.
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

// sendPool returns the unmade snapshots if the messages create any, and otherwise sends them.
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

// sendAll accepts only messages that create no snapshot.
func sendAll(device string, p *ondisk.Pool, number uint64) error {
	for _, made := range p.Creates {
		// Like LVM, accept one that exists.
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

func isMade(device string, number int64) (bool, error) {
	// The kernel reports EEXIST if the number is taken, before ENODATA for this origin.
	err := send(device, unix.ENODATA, "create_snap %d %d", number, int64(ondisk.NoVolume))
	if errors.Is(err, unix.EEXIST) {
		return true, nil
	}
	return false, err
}

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

// send treats the error expected as success; zero expects none.
func send(device string, expected unix.Errno, format string, args ...any) error {
	err := devmapper.Message(device, fmt.Sprintf(format, args...))
	if expected != 0 && errors.Is(err, expected) {
		return nil
	}
	return fromKernel(err)
}
