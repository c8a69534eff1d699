package lvm

import (
	"errors"
	"fmt"
	"slices"
)

// Pin implements Groups. Where another group of the name was is forgotten: the next
// Scan looks at all devices.
func (h *Host) Pin(group, uuid string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.pins[group] == uuid {
		return
	}
	h.pins[group] = uuid
	if len(h.physical[group]) > 0 && h.uuids[group] != uuid {
		delete(h.devices, group)
		delete(h.physical, group)
	}
}

// Limit implements Groups.
func (h *Host) Limit(accepts func(*BlockDevice) bool) { h.accepts = accepts }

// Others implements Groups.
func (h *Host) Others(group string) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.others[group])
}

// errOtherGroup says that a disk belongs to another group than it is expected to.
var errOtherGroup = errors.New("another volume group")

// confirm returns an error when a disk of the group, where it was seen last, holds another
// group by now: the kernel gives the name of a disk that is gone to the next one. ErrNotFound
// has the caller scan. A disk that cannot be read is left to LVM.
func (h *Host) confirm(group string) error {
	pin := h.pinned(group)
	if pin == "" {
		return nil
	}
	for _, path := range h.known(group) {
		head, err := patiently(h, path, readTextHead)
		if err != nil {
			continue
		}
		if err := head.check(group, pin); err != nil {
			return fmt.Errorf("volume group %q: %w: %s: %w", group, ErrNotFound, path, err)
		}
	}
	return nil
}

// pinned is the UUID that a group must have, or empty.
func (h *Host) pinned(group string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.pins[group]
}

// pick keeps those of the found groups that are taken for the ones of their names, and
// notes the UUIDs of the others.
func (h *Host) pick(groups []string, found []Group) []Group {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ours []Group
	for _, name := range groups {
		taken, others := Identify(name, h.pins[name], found)
		if len(others) > 0 {
			h.others[name] = others
		} else {
			delete(h.others, name)
		}
		if taken != nil {
			h.uuids[name] = taken.UUID
			ours = append(ours, *taken)
		}
	}
	return ours
}

// Identify chooses among groups the one that is taken for the one of a name: that with
// the UUID, or without a UUID the only one of the name. It returns nil when there is
// none, and the UUIDs of all others of the name.
func Identify(name, uuid string, among []Group) (taken *Group, others []string) {
	var named []*Group
	for i := range among {
		if among[i].Name == name {
			named = append(named, &among[i])
		}
	}
	for _, g := range named {
		if g.UUID == uuid || uuid == "" && len(named) == 1 {
			taken = g
		} else {
			others = append(others, g.UUID)
		}
	}
	slices.Sort(others)
	return taken, others
}
