package lvm

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// waitingMessages are what LVM's metadata says is yet to be told to a thin pool.
type waitingMessages struct {
	pool string
	// transaction is what the pool's number is to be once it was told.
	transaction uint64
	// volumes are the pool's.
	volumes []string
}

// settleMessages makes ready for the removal of volumes what a command that was
// killed, or that the power left, did not finish with their thin pools.
//
// LVM removes a thin volume in three steps: it commits metadata with a message
// for the pool (delete NUMBER) and the number that the pool's transactions get with
// it; it sends the message and that number to the kernel, which commits both; it
// commits metadata without the message. Where the third is missing, the message
// looks as if it still were to be sent. The next removal adds its own to it, without
// raising the number; and because the kernel has that number already, LVM takes
// all of them for sent (2.03.16: detach_pool_lv, attach_pool_message,
// _thin_pool_node_send_messages). The pool keeps the removed volume, and a new one
// that gets its number has what it held. Making volumes is safe: it begins with
// taking such messages back.
//
// So where the kernel has the number of metadata with messages, it is given the one
// before: LVM sends all of them, and the kernel answers those that it knows with an
// error that LVM expects.
func (h *Host) settleMessages(group string, volumes []string) error {
	all, err := committed(h, group, parseMessages)
	if err != nil {
		return err
	}
	for _, m := range all {
		if !slices.ContainsFunc(volumes, func(v string) bool { return slices.Contains(m.volumes, v) }) {
			continue
		}
		device, params, err := dmPoolStatus(group, m.pool)
		if err != nil {
			return fmt.Errorf("thin pool %q of volume group %q, which has to be told something yet: %w", m.pool, group, err)
		}
		number, _, _ := strings.Cut(params, " ")
		if now, err := strconv.ParseUint(number, 10, 64); err != nil || now != m.transaction || now == 0 {
			continue // it was not told, or fails: LVM knows what to do
		}
		err = fromKernel(devmapper.Message(device, fmt.Sprintf("set_transaction_id %d %d", m.transaction, m.transaction-1)))
		if err != nil {
			return fmt.Errorf("thin pool %q of volume group %q cannot be told to expect messages: %w", m.pool, group, err)
		}
	}
	return nil
}

// parseMessages finds the pools with messages in a group's metadata text.
func parseMessages(text []byte) ([]waitingMessages, error) {
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
	var all []waitingMessages
	in := map[string][]string{}
	for name, v := range volumes {
		volume, _ := v.(section)
		segment, _ := volume["segment1"].(section)
		switch segment["type"] {
		case "thin":
			if pool, ok := segment["thin_pool"].(string); ok {
				in[pool] = append(in[pool], name)
			}
		case "thin-pool":
			if _, waiting := segment["message1"].(section); !waiting {
				continue
			}
			transaction, ok := segment["transaction_id"].(int64)
			if !ok || transaction < 0 {
				return nil, fmt.Errorf("metadata: thin pool %q has the transaction %v", name, segment["transaction_id"])
			}
			all = append(all, waitingMessages{pool: name, transaction: uint64(transaction)})
		}
	}
	for i := range all {
		all[i].volumes = in[all[i].pool]
	}
	return all, nil
}
