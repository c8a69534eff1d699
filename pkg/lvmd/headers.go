package lvmd

import (
	"context"
	"time"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/blockdev"
	"github.com/carve-csi/carve/pkg/luks"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/volumegroup"
)

// headerTimeout bounds reading a header from an unresponsive disk.
const headerTimeout = 30 * time.Second

type headers struct {
	*core
	inspect func(device, volume string) (luks.State, error)
	note    func(context.Context, *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error)
	reads   blockdev.Guard
}

// noteFound runs once after the start. It notes encryption that an older node plugin or lvmd
// did not note, or that the group could not tag. Failures wait for the next staging or start.
func (h *headers) noteFound(ctx context.Context, g *volumegroup.Group) {
	for _, found := range g.HeadersNotTagged() {
		if ctx.Err() != nil {
			return
		}
		if !found.Noted && !h.isMade(ctx, found) {
			continue
		}
		_, err := h.note(ctx, &lvmdv1.NoteEncryptedRequest{Id: found.Volume})
		if err != nil && !apierror.IsNotFound(err) && ctx.Err() == nil {
			h.log.Warn("that a volume is encrypted cannot be noted", "volume", found.Volume, "error", err)
		}
	}
}

func (h *headers) isMade(ctx context.Context, of inventory.Header) bool {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	state, err := blockdev.Do(ctx, &h.reads, of.Device, func(path string) (luks.State, error) { return h.inspect(path, of.Volume) })
	if err != nil {
		h.log.Warn("whether a volume is encrypted cannot be read", "volume", of.Volume, "error", err)
	}
	return err == nil && state == luks.Made
}
