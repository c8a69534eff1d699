package lvmfake

import (
	"context"
	"slices"

	"github.com/carve-csi/carve/pkg/lvm"
)

func (f volumes) Rename(ctx context.Context, groupName, name, to string) error {
	return f.command(ctx, OpRename, groupName, "lvrename", func(g *group) error {
		v := g.volumes[name]
		switch {
		case v == nil:
			return failure("lvrename", lvm.ErrNotFound, "volume %s/%s", groupName, name)
		case g.volumes[to] != nil:
			return failure("lvrename", lvm.ErrExists, "volume %s/%s", groupName, to)
		}
		delete(g.volumes, name)
		g.volumes[to] = v
		g.seqno++
		return nil
	})
}

func (f volumes) Retag(ctx context.Context, groupName, name string, remove, add []string) error {
	return f.command(ctx, OpRetag, groupName, "lvchange", func(g *group) error {
		v := g.volumes[name]
		if v == nil {
			return failure("lvchange", lvm.ErrNotFound, "volume %s/%s", groupName, name)
		}
		before := v.tags
		v.tags = slices.DeleteFunc(slices.Clone(v.tags), func(t string) bool { return slices.Contains(remove, t) || slices.Contains(add, t) })
		v.tags = append(v.tags, add...)
		if text := g.text(); text > g.metadataLimit {
			v.tags = before
			return failure("lvchange", lvm.ErrNoSpace, "metadata of %d bytes exceeds %d", text, g.metadataLimit)
		}
		g.seqno++
		return nil
	})
}
