package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/devmapper"
	"github.com/carve-csi/carve/pkg/lvm/layout"
)

// Crypt encrypts volumes with dm-crypt. It is part of Groups. An encrypted volume has a second
// device on top of its own, for all reads and writes, which holds its own device open
// exclusively.
//
// Encrypt draws a random key, passes it to the kernel, and forgets it. ForgetKey or a power cut
// ends the key, and with it the data. Arguments name volumes without their group, so names must
// differ between groups.
type Crypt interface {
	// Encrypt gives an active volume an encrypted device, unless it has one. fresh is true when
	// the key is new: what the volume held before reads as noise. It returns ErrNotFound if the
	// volume is inactive, and ErrBusy if its own device is in use.
	Encrypt(group, volume string, o CryptOptions) (fresh bool, err error)

	// GrowCrypt grows a volume's encrypted device to the volume's size, even in use. The growth
	// reads as noise. It returns ErrNotFound if the volume has no encrypted device.
	GrowCrypt(group, volume string) error

	// ForgetKey removes a volume's encrypted device, if any, and with it the key. It returns
	// ErrBusy while the device is open.
	ForgetKey(volume string) error

	// CryptDevice describes a volume's encrypted device, and corrects its node if missing or
	// stale. ErrNotFound means that the volume has no such device, and so no key.
	CryptDevice(volume string) (Device, error)

	// OpenCrypt opens a volume's encrypted device exclusively, like Open.
	OpenCrypt(volume string) (blockdev.Handle, error)

	// Encrypted names the volumes, of any group, that have an encrypted device.
	Encrypted() ([]string, error)
}

// CryptOptions describes an encrypted device.
type CryptOptions struct {
	// Discards passes discards to the disk, which reveals there which space is unused.
	Discards bool
}

const (
	// cryptPrefix begins the device-mapper names of encrypted devices. Names of LVM's devices
	// cannot: they contain a hyphen.
	cryptPrefix = "carve.crypt."
	cryptUUID   = "CARVE-CRYPT-"
	// cipher is AES in XTS mode with a key of 256 bits, and as many for the tweak.
	cipher  = "aes-xts-plain64"
	keySize = 64
	// removeTimeout bounds the retries of removing an open device: udev opens devices for a
	// moment.
	removeTimeout = 500 * time.Millisecond
)

func cryptName(volume string) string { return cryptPrefix + volume }

func cryptPath(volume string) string { return "/dev/mapper/" + cryptName(volume) }

// cryptStatus treats a device without a table, which a killed Encrypt left, as not found.
func cryptStatus(volume string) (devmapper.Device, error) {
	d, err := dmStatus(cryptName(volume))
	if err == nil && !d.Active {
		err = fmt.Errorf("device-mapper device %s has no table: %w", cryptName(volume), ErrNotFound)
	}
	return d, err
}

type encryption struct{}

func (e encryption) Encrypt(group, volume string, o CryptOptions) (fresh bool, err error) {
	if d, err := cryptStatus(volume); err == nil {
		return false, blockdev.MakeNode(cryptPath(volume), numberOf(d))
	} else if !errors.Is(err, ErrNotFound) {
		return false, err
	}
	below, err := dmStatus(layout.DeviceName(group, volume))
	if err != nil {
		return false, err
	}
	sectors, err := dmSectors(layout.DeviceName(group, volume))
	if err != nil {
		return false, err
	}
	// What a killed call left has no key.
	if err := e.ForgetKey(volume); err != nil {
		return false, err
	}
	if err := devmapper.Create(cryptName(volume), cryptUUID+volume); err != nil {
		return false, fromKernel(err)
	}
	d, err := loadCrypt(cryptName(volume), sectors, below, o)
	if err == nil {
		err = blockdev.MakeNode(cryptPath(volume), numberOf(d))
	}
	if err != nil {
		return false, errors.Join(err, e.ForgetKey(volume))
	}
	return true, nil
}

// GrowCrypt implements Crypt. It reloads the kernel's own table with another length.
func (e encryption) GrowCrypt(group, volume string) error {
	if _, err := cryptStatus(volume); err != nil {
		return err
	}
	has, err := dmSectors(cryptName(volume))
	if err != nil {
		return err
	}
	want, err := dmSectors(layout.DeviceName(group, volume))
	if err != nil {
		return err
	}
	switch {
	case want == has:
		return nil
	case want < has:
		return fmt.Errorf("volume %s has %d sectors, its encrypted device %d", volume, want, has)
	}
	return extendCrypt(cryptName(volume), want)
}

// ForgetKey implements Crypt. The node goes last: it leads to the device as long as that
// exists.
func (e encryption) ForgetKey(volume string) error {
	deadline := time.Now().Add(removeTimeout)
	for wait := time.Millisecond; ; wait *= 2 {
		err := dmRemove(cryptName(volume))
		switch {
		case err == nil, errors.Is(err, ErrNotFound):
			return blockdev.RemoveNode(cryptPath(volume))
		case !errors.Is(err, ErrBusy) || time.Now().After(deadline):
			return err
		}
		time.Sleep(wait)
	}
}

func (e encryption) CryptDevice(volume string) (Device, error) {
	d, err := cryptStatus(volume)
	if err != nil {
		return Device{}, err
	}
	if err := blockdev.MakeNode(cryptPath(volume), numberOf(d)); err != nil {
		return Device{}, err
	}
	return Device{
		Path: cryptPath(volume), Major: d.Major, Minor: d.Minor,
		OpenCount: d.OpenCount, Suspended: d.Suspended,
	}, nil
}

func (e encryption) OpenCrypt(volume string) (blockdev.Handle, error) {
	if _, err := e.CryptDevice(volume); err != nil {
		return nil, err
	}
	return openAlone(cryptName(volume), volume)
}

func (e encryption) Encrypted() ([]string, error) {
	all, err := dmList()
	if err != nil {
		return nil, err
	}
	var volumes []string
	for _, device := range all {
		if volume, ours := strings.CutPrefix(device.Name, cryptPrefix); ours {
			volumes = append(volumes, volume)
		}
	}
	slices.Sort(volumes)
	return volumes, nil
}
