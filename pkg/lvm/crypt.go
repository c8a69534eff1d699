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

// Crypt is what a daemon needs of dm-crypt. It is part of Groups. A volume that
// is encrypted has a second device on top of its own, through which everything
// is written and read; its own device is claimed as long as that one exists.
//
// The key is random: Encrypt makes it, gives it to the kernel, and forgets it. It ends with the device, by ForgetKey or with the machine's power,
// and with it ends what was written. Volumes are named without their group:
// names must differ between groups.
type Crypt interface {
	// Encrypt gives an active volume a device with a new key, unless it has one.
	// fresh is true when the key is new: what the volume held before reads as
	// noise. ErrNotFound when the volume is not active, ErrBusy when its own
	// device is in use.
	Encrypt(group, volume string, o CryptOptions) (fresh bool, err error)

	// GrowCrypt gives a volume's encrypted device the size that the volume has
	// now, also while it is in use. What it grows by reads as noise. ErrNotFound
	// when it has none.
	GrowCrypt(group, volume string) error

	// ForgetKey ends a volume's encrypted device, and its key. It is no error if
	// there is none. ErrBusy while it is open.
	ForgetKey(volume string) error

	// CryptDevice describes a volume's encrypted device, and makes its node
	// right where it is missing or stale. ErrNotFound when there is no device,
	// and so no key.
	CryptDevice(volume string) (Device, error)

	// OpenCrypt opens a volume's encrypted device for the caller alone, as Open
	// does its own.
	OpenCrypt(volume string) (blockdev.Handle, error)

	// Encrypted names the volumes of the machine, of whatever group, that have
	// an encrypted device.
	Encrypted() ([]string, error)
}

// CryptOptions say how a volume is encrypted.
type CryptOptions struct {
	// Discards lets discards through to the disk, which shows there what space
	// is not used.
	Discards bool
}

const (
	// cryptPrefix begins the device-mapper names of encrypted devices. No name
	// of a logical volume's device begins so: those have a hyphen.
	cryptPrefix = "carve.crypt."
	// cryptUUID begins their device-mapper UUIDs.
	cryptUUID = "CARVE-CRYPT-"
	// cipher is AES in XTS mode with a key of 256 bits (and as many for the tweak).
	cipher  = "aes-xts-plain64"
	keySize = 64
	// removeTimeout is how long a device that is open is tried to be removed: udev
	// looks into devices for a moment.
	removeTimeout = 500 * time.Millisecond
)

func cryptName(volume string) string { return cryptPrefix + volume }

func cryptPath(volume string) string { return "/dev/mapper/" + cryptName(volume) }

// cryptStatus asks for an encrypted device. One without a table, which a killed
// Encrypt left, is not found.
func cryptStatus(volume string) (devmapper.Device, error) {
	d, err := dmStatus(cryptName(volume))
	if err == nil && !d.Active {
		err = fmt.Errorf("device-mapper device %s has no table: %w", cryptName(volume), ErrNotFound)
	}
	return d, err
}

// encryption makes and removes encrypted devices. It runs no command.
type encryption struct{}

// Encrypt implements Crypt.
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

// GrowCrypt implements Crypt. The kernel is given its own table back, but for
// the length.
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

// ForgetKey implements Crypt. The node goes last: while there is a device, it
// leads there.
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

// CryptDevice implements Crypt.
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

// OpenCrypt implements Crypt.
func (e encryption) OpenCrypt(volume string) (blockdev.Handle, error) {
	if _, err := e.CryptDevice(volume); err != nil {
		return nil, err
	}
	return openAlone(cryptName(volume), volume)
}

// Encrypted implements Crypt.
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
