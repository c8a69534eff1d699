package lvmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
)

// GetVolume implements lvmdv1.LVMDServer.
func (s *Service) GetVolume(_ context.Context, r *lvmdv1.GetVolumeRequest) (*lvmdv1.GetVolumeResponse, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	v, err := s.model.lookup(r.GetId(), r.GetName())
	if err != nil {
		return nil, err
	}
	return &lvmdv1.GetVolumeResponse{Volume: v.proto()}, nil
}

// ListVolumes implements lvmdv1.LVMDServer. A page token is the id of the last
// volume of the page before: volumes that come or go in between are neither
// repeated nor the cause of others being left out. Only the response's encoding
// has the volumes, see listed: who calls this method itself sees none.
func (s *Service) ListVolumes(_ context.Context, r *lvmdv1.ListVolumesRequest) (*lvmdv1.ListVolumesResponse, error) {
	if r.GetPageSize() < 0 {
		return nil, invalidField("page_size", "%d is negative; 0 means no limit", r.GetPageSize())
	}
	if t := r.GetPageToken(); t != "" && !idPattern.MatchString(t) {
		return nil, invalidField("page_token", "%q is not one that was given out", t)
	}
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	limit := clampPage(r.GetPageSize())
	volumes := s.model.ordered()
	after, _ := slices.BinarySearchFunc(volumes, r.GetPageToken()+"\x00", func(v *volume, id string) int { return strings.Compare(v.rec.ID, id) })
	page := listed{expected: min(limit, len(volumes)-after), buffers: &s.lists}
	count, last := 0, ""
	for _, v := range volumes[after:] {
		if v.rec.Phase == deleting || v.rec.Ident.Snapshot {
			continue
		}
		if count == limit {
			return page.response(last), nil
		}
		if err := page.add(v); err != nil {
			return nil, fmt.Errorf("encoding volume %s: %w", v.rec.ID, err)
		}
		count, last = count+1, v.rec.ID
	}
	return page.response(""), nil
}

// ListClasses implements lvmdv1.LVMDServer.
func (s *Service) ListClasses(context.Context, *lvmdv1.ListClassesRequest) (*lvmdv1.ListClassesResponse, error) {
	s.model.mu.Lock()
	defer s.model.mu.Unlock()
	resp := &lvmdv1.ListClassesResponse{}
	for _, c := range s.model.classes {
		if c.reported != nil {
			// What was reported is replaced when it changes, never written to.
			resp.Classes = append(resp.Classes, c.reported)
		}
	}
	return resp, nil
}
