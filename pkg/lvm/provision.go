package lvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

var _ Devices = (*Host)(nil)

// headLength is how much of a device without a signature must be empty.
const headLength = 4096

// partitionTables are the kinds of signature that divide a device.
var partitionTables = []string{
	"dos", "gpt", "PMBR", "bsd", "mac", "sun", "sgi", "minix", "unixware", "ultrix", "solaris_x86", "atari", "aix",
}

// BlockDevices implements Devices.
func (h *Host) BlockDevices() ([]BlockDevice, error) {
	all, err := ListBlockDevices("/")
	if err != nil || h.accepts == nil {
		return all, err
	}
	return slices.DeleteFunc(all, func(d BlockDevice) bool { return !h.accepts(&d) }), nil
}

// Label implements Devices.
func (h *Host) Label(device string) (Label, error) { return patiently(h, device, readLabel) }

// AttachFile implements Devices.
func (h *Host) AttachFile(path string, size int64) (string, error) { return AttachFile(path, size) }

// Examine implements Devices. It holds the device exclusively meanwhile, so
// that what is found belongs to nobody who uses it. Signatures are found by
// wipefs, which knows all that libblkid knows; one process per call.
func (h *Host) Examine(ctx context.Context, device string) (Contents, error) {
	// For reading: closing a device that was open for writing makes udev look at it.
	f, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EBUSY):
		return Contents{}, fmt.Errorf("%s: %w", device, ErrClaimed)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV):
		return Contents{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	case err != nil:
		return Contents{}, err
	}
	defer f.Close()
	var c Contents
	label, err := h.Label(device)
	switch {
	case err == nil:
		c.Label = &label
	case label.UUID != "":
		// A physical volume whose metadata makes no sense is one all the same.
		label.Group, label.Orphan = "", false
		c.Label = &label
	case !errors.Is(err, ErrNotFound):
		return Contents{}, err
	}
	wipefs := Runner{Binary: "wipefs", Timeout: h.runner.Timeout}
	out, err := wipefs.Run(ctx, "--json", device)
	if err != nil {
		return Contents{}, fmt.Errorf("looking for signatures on %s (wipefs): %w", device, err)
	}
	if c.Signatures, err = parseWipefs(out); err != nil {
		return Contents{}, fmt.Errorf("looking for signatures on %s: %w", device, err)
	}
	c.Partitioned = slices.ContainsFunc(c.Signatures, func(s string) bool { return slices.Contains(partitionTables, s) })
	if len(c.Signatures) == 0 && c.Label == nil {
		head := make([]byte, headLength)
		if _, err := f.ReadAt(head, 0); err != nil {
			return Contents{}, fmt.Errorf("%s: %w", device, err)
		}
		c.Unknown = len(bytes.Trim(head, "\x00")) > 0
	}
	return c, nil
}

// parseWipefs reads the kinds of signatures; with none, wipefs says nothing.
func parseWipefs(out []byte) ([]string, error) {
	if len(bytes.TrimSpace(out)) == 0 {
		return nil, nil
	}
	var report struct {
		Signatures []struct {
			Type string `json:"type"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(out, &report); err != nil {
		return nil, fmt.Errorf("wipefs: %w", err)
	}
	var kinds []string
	for _, s := range report.Signatures {
		if !slices.Contains(kinds, s.Type) {
			kinds = append(kinds, s.Type)
		}
	}
	return kinds, nil
}

// InitDevice implements Devices. Without --yes, pvcreate asks before it
// destroys a signature, gets no answer, and fails.
func (h *Host) InitDevice(ctx context.Context, o InitOptions) error {
	args := []string{
		"--config", lvmConfig([]string{o.Device}),
		"--uuid", o.UUID, "--norestorefile", "--zero", "y",
		"--metadatasize", strconv.FormatInt(o.MetadataSize, 10) + "b",
		"--dataalignment", strconv.FormatInt(o.DataAlignment, 10) + "b",
	}
	if o.Overwrite {
		args = append(args, "--yes")
	}
	if _, err := h.runner.Run(ctx, "pvcreate", append(args, o.Device)...); err != nil {
		return err
	}
	return h.flushed(ctx, []string{o.Device})
}

// CreateGroup implements Devices. It looks at all disks first: LVM, which sees
// only the new ones, would make a second group of the same name.
func (h *Host) CreateGroup(ctx context.Context, o GroupOptions) error {
	if !ValidName(o.Group) {
		return fmt.Errorf("volume group name %q is malformed", o.Group)
	}
	if found, err := h.scan(ctx, []string{o.Group}, nil); err != nil {
		return err
	} else if len(found) > 0 {
		return fmt.Errorf("volume group %q: %w", o.Group, ErrExists)
	}
	if err := dropStaleNodes(o.Group); err != nil {
		return err
	}
	args := []string{
		"--config", lvmConfig(o.Devices),
		"--physicalextentsize", strconv.FormatInt(o.ExtentSize, 10) + "b", o.Group,
	}
	if _, err := h.runner.Run(ctx, "vgcreate", append(args, o.Devices...)...); err != nil {
		return err
	}
	h.addDevices(o.Group, o.Devices)
	return h.flushed(ctx, o.Devices)
}

// ExtendGroup implements Devices.
func (h *Host) ExtendGroup(ctx context.Context, group string, devices []string) error {
	known := h.known(group)
	if len(known) == 0 {
		return fmt.Errorf("volume group %q: %w: none of its disks is known", group, ErrNotFound)
	}
	args := []string{"--config", lvmConfig(slices.Concat(known, devices)), group}
	if _, err := h.runner.Run(ctx, "vgextend", append(args, devices...)...); err != nil {
		return err
	}
	h.addDevices(group, devices)
	return h.flushed(ctx, h.known(group))
}

// flushed returns when what a command wrote is durable.
func (h *Host) flushed(ctx context.Context, devices []string) error {
	ctx, cancel := context.WithTimeout(ctx, h.runner.Timeout)
	defer cancel()
	return h.flushes.flush(ctx, devices)
}

// ResizeDevice implements Devices. A process of its own is sure to ask the
// kernel for the device's size.
func (h *Host) ResizeDevice(ctx context.Context, group, device string) error {
	known := h.known(group)
	if len(known) == 0 {
		return fmt.Errorf("volume group %q: %w: none of its disks is known", group, ErrNotFound)
	}
	if _, err := h.runner.Run(ctx, "pvresize", "--config", lvmConfig(known), device); err != nil {
		return err
	}
	return h.flushed(ctx, known)
}

// addDevices adds devices to those of a group.
func (h *Host) addDevices(group string, devices []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Concat(h.devices[group], devices)
	slices.Sort(all)
	h.devices[group] = slices.Compact(all)
}
