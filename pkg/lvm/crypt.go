package lvm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carve-csi/carve/pkg/devmapper"
)

// Crypt is what a daemon needs of dm-crypt. It is part of Groups. A volume that
// is encrypted has a second device on top of its own, through which everything
// is written and read; its own device is claimed as long as that one exists.
//
// The key is random and nobody's: made by Encrypt, given to the kernel, and
// forgotten. It ends with the device, by ForgetKey or with the machine's power,
// and with it ends what was written. Volumes are named without their group:
// names must differ between groups.
type Crypt interface {
	// Encrypt gives an active volume a device with a new key, unless it has one.
	// fresh is true when the key is new: what the volume held before reads as
	// noise. ErrNotFound when the volume is not active, ErrBusy when somebody
	// uses its own device.
	Encrypt(group, volume string, o CryptOptions) (fresh bool, err error)

	// GrowCrypt gives a volume's encrypted device the size that the volume has
	// now, also while it is in use. What it grows by reads as noise. ErrNotFound
	// when it has none.
	GrowCrypt(group, volume string) error

	// ForgetKey ends a volume's encrypted device, and its key. It is no error if
	// there is none. ErrBusy while somebody has it open.
	ForgetKey(volume string) error

	// CryptDevice tells about a volume's encrypted device, and makes its node
	// right where it is missing or stale. ErrNotFound when there is no device,
	// and so no key.
	CryptDevice(volume string) (Device, error)

	// OpenCrypt opens a volume's encrypted device for the caller alone, as Open
	// does its own.
	OpenCrypt(volume string) (Handle, error)

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
	// cryptPatience is for how long a device that somebody has open is tried to
	// be removed: udev looks into devices for a moment.
	cryptPatience = 500 * time.Millisecond
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

// Encrypt implements Crypt.
func (h *Host) Encrypt(group, volume string, o CryptOptions) (fresh bool, err error) {
	if d, err := cryptStatus(volume); err == nil {
		return false, makeNode(cryptPath(volume), d)
	} else if !errors.Is(err, ErrNotFound) {
		return false, err
	}
	below, err := dmStatus(dmName(group, volume))
	if err != nil {
		return false, err
	}
	sectors, err := dmSectors(dmName(group, volume))
	if err != nil {
		return false, err
	}
	// What a killed call left has no key.
	if err := h.ForgetKey(volume); err != nil {
		return false, err
	}
	if err := devmapper.Create(cryptName(volume), cryptUUID+volume); err != nil {
		return false, fromKernel(err)
	}
	d, err := loadCrypt(cryptName(volume), sectors, below, o)
	if err == nil {
		err = makeNode(cryptPath(volume), d)
	}
	if err != nil {
		return false, errors.Join(err, h.ForgetKey(volume))
	}
	return true, nil
}

// GrowCrypt implements Crypt. The kernel is given its own table back, but for
// the length.
func (h *Host) GrowCrypt(group, volume string) error {
	if _, err := cryptStatus(volume); err != nil {
		return err
	}
	has, err := dmSectors(cryptName(volume))
	if err != nil {
		return err
	}
	want, err := dmSectors(dmName(group, volume))
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
func (h *Host) ForgetKey(volume string) error {
	deadline := time.Now().Add(cryptPatience)
	for wait := time.Millisecond; ; wait *= 2 {
		err := dmRemove(cryptName(volume))
		switch {
		case err == nil, errors.Is(err, ErrNotFound):
			return remove(cryptPath(volume))
		case !errors.Is(err, ErrBusy) || time.Now().After(deadline):
			return err
		}
		time.Sleep(wait)
	}
}

// CryptDevice implements Crypt.
func (h *Host) CryptDevice(volume string) (Device, error) {
	d, err := cryptStatus(volume)
	if err != nil {
		return Device{}, err
	}
	if err := makeNode(cryptPath(volume), d); err != nil {
		return Device{}, err
	}
	return Device{
		Path: cryptPath(volume), Major: d.Major, Minor: d.Minor,
		OpenCount: d.OpenCount, Suspended: d.Suspended,
	}, nil
}

// OpenCrypt implements Crypt.
func (h *Host) OpenCrypt(volume string) (Handle, error) {
	if _, err := h.CryptDevice(volume); err != nil {
		return nil, err
	}
	return openAlone(cryptName(volume), volume)
}

// Encrypted implements Crypt.
func (h *Host) Encrypted() ([]string, error) {
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

// makeNode makes a node of a device, unless there is one, or a link to one.
func makeNode(path string, d devmapper.Device) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK &&
		unix.Major(st.Rdev) == d.Major && unix.Minor(st.Rdev) == d.Minor {
		return nil
	}
	// In two steps, so that nobody ever finds none, or is in the way.
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := remove(fresh); err != nil {
		return err
	}
	if err := unix.Mknod(fresh, unix.S_IFBLK|0o600, int(d.Number())); err != nil {
		return fmt.Errorf("making device node %s: %w", fresh, err)
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(err, remove(fresh))
	}
	return nil
}
