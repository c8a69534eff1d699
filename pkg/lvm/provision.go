package lvm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

const headLength = 4096

var partitionTables = []string{
	"dos", "gpt", "PMBR", "bsd", "mac", "sun", "sgi", "minix", "unixware", "ultrix", "solaris_x86", "atari", "aix",
}

type provisioning struct {
	commands *commands
	disks    *disks
	volumes  *volumes
}

func (p provisioning) AttachFile(path string, size int64) (string, error) {
	return blockdev.AttachFile(path, size)
}

// Examine implements Devices. It holds the device exclusively, so that the contents are not in
// use. It finds signatures by wipefs, which knows all those of libblkid; one process per call.
func (p provisioning) Examine(ctx context.Context, device string) (Contents, error) {
	if err := p.disks.examine(device); err != nil {
		return Contents{}, err
	}
	// Read-only: closing a device after writing makes udev open it.
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
	label, err := p.disks.Label(device)
	switch {
	case err == nil:
		c.Label = &label
	case label.UUID != "":
		// A physical volume with malformed metadata is one all the same.
		label.Group, label.Orphan = "", false
		c.Label = &label
	case !errors.Is(err, ErrNotFound):
		return Contents{}, err
	}
	wipefs := Runner{Binary: "wipefs", Timeout: p.commands.runner.Timeout}
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

// parseWipefs accepts empty output: wipefs found nothing.
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

// InitDevice implements Devices. Without --yes, pvcreate asks before it destroys a signature,
// gets no answer, and fails.
func (p provisioning) InitDevice(ctx context.Context, o InitOptions) error {
	args := []string{
		"--uuid", o.UUID, "--norestorefile", "--zero", "y",
		"--metadatasize", inBytes(o.MetadataSize),
		"--dataalignment", inBytes(o.DataAlignment),
	}
	if o.Overwrite {
		args = append(args, "--yes")
	}
	return p.commands.run(ctx, []string{o.Device}, "pvcreate", append(args, o.Device)...)
}

// CreateGroup implements Devices. It looks at all disks first: LVM, confined to the new ones,
// would create a second group of the same name.
func (p provisioning) CreateGroup(ctx context.Context, o GroupOptions) error {
	if !ondisk.ValidName(o.Group) {
		return fmt.Errorf("volume group name %q is malformed", o.Group)
	}
	if found, err := p.volumes.scan(ctx, []string{o.Group}, nil); err != nil {
		return err
	} else if len(found) > 0 {
		return fmt.Errorf("volume group %q: %w", o.Group, ErrExists)
	}
	if err := dropStaleNodes(o.Group); err != nil {
		return err
	}
	args := []string{"--physicalextentsize", inBytes(o.ExtentSize), o.Group}
	if err := p.commands.exec(ctx, o.Devices, "vgcreate", append(args, o.Devices...)...); err != nil {
		return err
	}
	p.disks.add(o.Group, o.Devices)
	return p.commands.durable(ctx, o.Devices)
}

func (p provisioning) ExtendGroup(ctx context.Context, group string, devices []string) error {
	known, err := p.disks.require(group)
	if err != nil {
		return err
	}
	if err := p.commands.exec(ctx, slices.Concat(known, devices), "vgextend", append([]string{group}, devices...)...); err != nil {
		return err
	}
	p.disks.add(group, devices)
	return p.commands.durable(ctx, p.disks.known(group))
}

// ResizeDevice implements Devices. A separate process is sure to ask the kernel for the
// device's size.
func (p provisioning) ResizeDevice(ctx context.Context, group, device string) error {
	known, err := p.disks.require(group)
	if err != nil {
		return err
	}
	return p.commands.run(ctx, known, "pvresize", device)
}
