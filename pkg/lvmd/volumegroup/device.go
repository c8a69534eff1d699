package volumegroup

import (
	"context"
	"errors"
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
)

// openTimeout bounds the retries on a busy device: udev, where the host runs it, opens a device for
// a moment after it appeared or was closed.
const openTimeout = 500 * time.Millisecond

// Open opens the device that the volume's user sees, exclusively.
func (s *Groups) Open(ctx context.Context, v *inventory.Volume) (blockdev.Handle, error) {
	return retryBusy(ctx, func() (blockdev.Handle, error) {
		if v.IsEncrypted() {
			return s.LVM.OpenCrypt(v.ID())
		}
		return s.LVM.Open(v.Group().Name(), v.ID())
	})
}

// OpenForeign is Open for a logical volume that is not ours.
func (s *Groups) OpenForeign(ctx context.Context, g *Group, lv string) (blockdev.Handle, error) {
	return retryBusy(ctx, func() (blockdev.Handle, error) { return s.LVM.Open(g.Name(), lv) })
}

func retryBusy(ctx context.Context, open func() (blockdev.Handle, error)) (blockdev.Handle, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for wait := time.Millisecond; ; wait *= 2 {
		h, err := open()
		if !errors.Is(err, lvm.ErrBusy) || errors.Is(err, lvm.ErrClaimed) {
			return h, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Device asks the kernel for the device that the volume's user sees.
func (s *Groups) Device(v *inventory.Volume) (lvm.Device, error) {
	return deviceOf(s.LVM, v.Group().Name(), v.ID(), v.IsEncrypted())
}

func deviceOf(groups lvm.Groups, group, id string, encrypted bool) (lvm.Device, error) {
	if encrypted {
		return groups.CryptDevice(id)
	}
	return groups.Device(group, id)
}

type classKey struct{}

// ForClass returns a context that attributes LVM commands to a device class.
func ForClass(ctx context.Context, class string) context.Context {
	return context.WithValue(ctx, classKey{}, class)
}

// ForClassOf is ForClass for volumes; several classes count for none.
func ForClassOf(ctx context.Context, volumes ...*inventory.Volume) context.Context {
	class := volumes[0].Ident().Class
	for _, v := range volumes {
		if v.Ident().Class != class {
			return ctx
		}
	}
	return ForClass(ctx, class)
}

// ClassOf returns the class of ForClass, or "".
func ClassOf(ctx context.Context) string {
	class, _ := ctx.Value(classKey{}).(string)
	return class
}
