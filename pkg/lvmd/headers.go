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

// headerTimeout bounds how long a disk is waited for that does not give a header.
const headerTimeout = 30 * time.Second

// headers looks for LUKS headers that are not noted.
type headers struct {
	*core
	inspect func(device, volume string) (luks.State, error)
	note    func(context.Context, *lvmdv1.NoteEncryptedRequest) (*lvmdv1.NoteEncryptedResponse, error)
	reads   blockdev.Guard
}

// noteFound makes up, once after the start, for what was not noted of a group's encrypted
// volumes: by a node plugin or an lvmd of an older version, or because the group took no tag. A
// whole header says that a volume was encrypted. What cannot be read or noted now is noted when
// the volume is staged, or after the next start.
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

// isMade reports whether a volume carries the whole header that the node plugin makes for it.
func (h *headers) isMade(ctx context.Context, of inventory.Header) bool {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	state, err := blockdev.Do(ctx, &h.reads, of.Device, func(path string) (luks.State, error) { return h.inspect(path, of.Volume) })
	if err != nil {
		h.log.Warn("whether a volume is encrypted cannot be read", "volume", of.Volume, "error", err)
	}
	return err == nil && state == luks.Made
}
