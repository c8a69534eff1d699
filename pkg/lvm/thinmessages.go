package lvm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
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

// thinPoolText is what LVM's metadata say of a pool and of what is in it.
type thinPoolText struct {
	name string
	// transaction is the number that the pool's is to be.
	transaction uint64
	// numbers are those of the pool's volumes, by name.
	numbers map[string]int64
	// snapshots are the volumes made of another one.
	snapshots map[string]bool
	// creates and deletes are messages that are yet to be sent: volumes by name, and
	// numbers.
	creates []string
	deletes []int64
}

// nobody is a number that no volume of a pool has: LVM begins with 1, and goes on
// after the highest.
const nobody = 1<<24 - 2

// settle finishes what was left of messages for pools, where LVM could not, and
// returns the pools to which LVM will not send what it adds to a message. It is about
// the pools that are named, or that have the volumes that are.
//
// Only what failed leaves messages: nothing is read but after a Scan, which follows
// that, until there are none.
func (h *Host) settle(group string, names ...string) (deaf []thinPoolText, err error) {
	if !h.isUnsettled(group) {
		return nil, nil
	}
	waiting, err := committed(h, group, parseMessages)
	if err != nil {
		return nil, err
	}
	if len(waiting) == 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.unsettled, group)
		return nil, nil
	}
	// Another command, an administrator's for example, may be sending them.
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if waiting, err = committed(h, group, parseMessages); err != nil {
		return nil, err
	}
	for _, p := range waiting {
		if !slices.ContainsFunc(names, func(name string) bool { return name == p.name || p.numbers[name] != 0 }) {
			continue
		}
		isDeaf, err := p.settle(group)
		if err != nil {
			return nil, fmt.Errorf("thin pool %q of volume group %q, which has messages that were not finished: %w", p.name, group, err)
		}
		if isDeaf {
			deaf = append(deaf, p)
		}
	}
	return deaf, nil
}

func (h *Host) isUnsettled(group string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.unsettled[group]
}

// settle tells whether the kernel has the pool's number. If it has not and was sent
// the making of a snapshot, it is sent the rest.
func (p *thinPoolText) settle(group string) (deaf bool, err error) {
	device, params, err := dmPoolStatus(group, p.name)
	if err != nil {
		return false, err
	}
	word, _, _ := strings.Cut(params, " ")
	number, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return false, nil //nolint:nilerr // it failed, and LVM says so
	}
	if number == p.transaction {
		return true, nil
	}
	made := 0
	for _, v := range p.creates {
		if !p.snapshots[v] {
			continue
		}
		// Where the number is taken, that is the answer, and nobody has this origin.
		err := send(device, unix.ENODATA, "create_snap %d %d", p.numbers[v], int64(nobody))
		switch {
		case errors.Is(err, unix.EEXIST):
			made++
		case err != nil:
			return false, err
		}
	}
	if made == 0 || number+1 != p.transaction {
		return false, nil // LVM knows what to do
	}
	if made < len(p.creates) || len(p.deletes) > 0 {
		return false, fmt.Errorf("some of %d messages were sent, which LVM sends one by one", len(p.creates)+len(p.deletes))
	}
	return true, send(device, 0, "set_transaction_id %d %d", number, p.transaction)
}

// tellRemovals sends the group's pools what they were not told of removals: LVM would
// do so at the next command on the pool, and until then what was removed takes its
// room. The metadata must be durable. While a command is under way, which sends its
// messages itself, nothing is done.
func (h *Host) tellRemovals(group string) error {
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	waiting, err := committed(h, group, parseMessages)
	if err != nil {
		return err
	}
	for _, p := range waiting {
		device, params, err := dmPoolStatus(group, p.name)
		if err != nil {
			return err
		}
		word, _, _ := strings.Cut(params, " ")
		number, err := strconv.ParseUint(word, 10, 64)
		if err != nil || number+1 != p.transaction || len(p.creates) > 0 {
			continue
		}
		for _, removed := range p.deletes {
			if err := send(device, unix.ENODATA, "delete %d", removed); err != nil {
				return err
			}
		}
		if err := send(device, 0, "set_transaction_id %d %d", number, p.transaction); err != nil {
			return err
		}
	}
	return nil
}

// forgetRemoved has deaf pools forget those of the volumes that LVM has removed.
func (h *Host) forgetRemoved(group string, deaf []thinPoolText, volumes []string) error {
	if len(deaf) == 0 {
		return nil
	}
	unlock, err := lockGroup(LockDir, group)
	if err != nil {
		return err
	}
	defer unlock()
	left, err := committed(h, group, func(text []byte) (map[string]bool, error) {
		vg, err := parseGroup(text)
		names := map[string]bool{}
		all, _ := vg["logical_volumes"].(section)
		for name := range all {
			names[name] = true
		}
		return names, err
	})
	if err != nil {
		return err
	}
	for _, p := range deaf {
		for _, v := range volumes {
			number, in := p.numbers[v]
			if !in || left[v] {
				continue
			}
			device, _, err := dmPoolStatus(group, p.name)
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

// parseMessages finds the pools with messages in a group's metadata text.
func parseMessages(text []byte) ([]thinPoolText, error) {
	if !bytes.Contains(text, []byte("message1")) {
		return nil, nil // as nearly always, and the text may be long
	}
	vg, err := parseGroup(text)
	if err != nil {
		return nil, err
	}
	volumes, ok := vg["logical_volumes"].(section)
	if !ok {
		return nil, errors.New("metadata: a group with messages and without volumes")
	}
	var waiting []thinPoolText
	for name, v := range volumes {
		volume, _ := v.(section)
		segment, _ := volume["segment1"].(section)
		if _, ok := segment["message1"].(section); !ok || segment["type"] != "thin-pool" {
			continue
		}
		p, err := parsePool(name, segment, volumes)
		if err != nil {
			return nil, fmt.Errorf("metadata: thin pool %q: %w", name, err)
		}
		waiting = append(waiting, p)
	}
	slices.SortFunc(waiting, func(a, b thinPoolText) int { return strings.Compare(a.name, b.name) })
	return waiting, nil
}

func parsePool(name string, pool section, volumes section) (thinPoolText, error) {
	transaction, ok := pool["transaction_id"].(int64)
	if !ok || transaction < 0 {
		return thinPoolText{}, fmt.Errorf("its transaction is %v", pool["transaction_id"])
	}
	p := thinPoolText{name: name, transaction: uint64(transaction), numbers: map[string]int64{}, snapshots: map[string]bool{}}
	for volumeName, v := range volumes {
		volume, _ := v.(section)
		segment, _ := volume["segment1"].(section)
		if segment["type"] != "thin" || segment["thin_pool"] != name {
			continue
		}
		number, ok := segment["device_id"].(int64)
		if !ok || number < 0 || number >= nobody {
			return thinPoolText{}, fmt.Errorf("volume %q has the number %v", volumeName, segment["device_id"])
		}
		p.numbers[volumeName] = number
		_, p.snapshots[volumeName] = segment["origin"].(string)
	}
	for i := 1; ; i++ {
		message, ok := pool[fmt.Sprintf("message%d", i)].(section)
		if !ok {
			return p, nil
		}
		create, isCreate := message["create"].(string)
		number, isDelete := message["delete"].(int64)
		switch {
		case isCreate && p.numbers[create] != 0:
			p.creates = append(p.creates, create)
		case isDelete:
			p.deletes = append(p.deletes, number)
		default:
			return thinPoolText{}, fmt.Errorf("message %d is %v", i, message)
		}
	}
}
