package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvm/layout"
	"github.com/carve-csi/carve/pkg/lvmd/apierror"
	"github.com/carve-csi/carve/pkg/lvmd/spec"
)

// AdoptedBefore returns the report of the named volume, or nil if none has the name. It fails if
// that volume was adopted from another logical volume, or its adoption is being reverted.
func (m *Inventory) AdoptedBefore(name, lv string) (*lvmdv1.Volume, error) {
	m.lock()
	defer m.unlock()
	v := m.names[name]
	switch {
	case v == nil:
		return nil, nil
	case v.rec.AdoptedFrom != lv:
		return nil, apierror.RequestDiffers(name, fmt.Sprintf("it was adopted from %q, asked for %q", v.rec.AdoptedFrom, lv))
	case v.lifecycle.state == Deleting:
		return nil, errDeleting(v)
	}
	return v.proto(), nil
}

// Home is a class in one of its groups, into which a logical volume may be adopted.
type Home struct {
	Class string
	Group *Group
	in    *classGroup
}

// Homes returns the class in each of its groups that has all its disks; group restricts them unless
// empty.
func (m *Inventory) Homes(className, group string) ([]Home, error) {
	m.lock()
	defer m.unlock()
	c := m.class(className)
	if c == nil {
		return nil, apierror.ClassNotFound("no device class %q; %s", className, m.classNames())
	}
	var homes []Home
	for _, in := range c.groups {
		if (group == "" || in.group.name == group) && in.group.isUsable() {
			homes = append(homes, Home{c.Name, in.group, in})
		}
	}
	if len(homes) == 0 {
		return nil, apierror.DeviceMissing("device class %q has no volume group %q here whose disks are all there", c.Name, group)
	}
	return homes, nil
}

// Takes returns the reason why the class cannot have a logical volume, or nil.
func (h Home) Takes(lv *lvm.Volume) error {
	c := h.in
	switch {
	case spec.VolumeID.MatchString(lv.Name) || spec.SnapshotID.MatchString(lv.Name):
		return errors.New("has a name as Carve gives")
	case c.Medium == config.PMEM:
		return fmt.Errorf("cannot be in class %q, whose volumes are aligned for persistent memory", c.Name)
	case c.Type == config.Thin && lv.Pool != c.Thin.Pool:
		return fmt.Errorf("is not in thin pool %q, as class %q is", c.Thin.Pool, c.Name)
	case c.Type != config.Thin && lv.Pool != "":
		return fmt.Errorf("is a thin volume of pool %q, class %q is not thin", lv.Pool, c.Name)
	case lv.Pool == "" && !slices.Contains([]byte{'-', 'r'}, lv.Attr.Type) || lv.Pool != "" && lv.Attr.Type != 'V':
		return fmt.Errorf("is of a type, %q, that Carve has no class for", lv.Attr.Type)
	case lv.Pool == "" && !c.liesAs(lv.Layout):
		return fmt.Errorf("is %s, class %q is %s", lv.Layout, c.Name, c.Type)
	case !lv.Attr.Writable:
		return errors.New("is read-only; lvchange --permission rw makes it writable")
	case lv.Attr.SkipActivation:
		return errors.New("is skipped when volumes are activated; lvchange --setactivationskip n makes it a usual one")
	case lv.Attr.Health != lvm.Healthy:
		return errors.New("is not healthy")
	}
	return nil
}

// liesAs ignores the number of devices.
func (c *class) liesAs(l layout.Layout) bool {
	if l.IsLinear() {
		return c.Type == config.Linear || c.Stripes == config.AllDevices
	}
	return l.Type == layout.Type(c.Type)
}

// Candidate returns the report that a logical volume would have after its adoption. It fails if the
// group's metadata lacks space for the tags.
func (h Home) Candidate(lv *lvm.Volume, ident spec.Identity, tags []string) (*lvmdv1.Volume, error) {
	g := h.in.group
	g.m.lock()
	defer g.m.unlock()
	if !g.hasText(layout.VolumeText(tags, 1)) {
		return nil, apierror.NoSpace("the metadata of volume group %q is full", g.name)
	}
	v := &Volume{
		group: g, volumeScan: volumeScan{extents: lv.Size / g.info.ExtentSize},
		recorded: recorded{spec.Record{Ident: ident, AdoptedFrom: lv.Name}},
	}
	return v.proto(), nil
}

// ClaimAdopted claims a volume until Release, to confirm or revert its adoption.
func (m *Inventory) ClaimAdopted(id string, claim State) (*Volume, error) {
	m.lock()
	defer m.unlock()
	v, err := m.lookup(id, "", false)
	switch {
	case err != nil:
		return nil, err
	case v.rec.Phase != spec.Ready || v.isBusy() || v.pins > 0:
		return nil, apierror.OperationPending("another operation on volume %s is under way", id)
	}
	m.enter(v, claim)
	return v, nil
}

type reverted struct {
	unknown
	v *Volume
}

// Reverted is the effect of reverting the adoption of a volume.
func Reverted(v *Volume) Effect { return reverted{v: v} }

func (e reverted) apply(m *model) []*Volume {
	m.drop(e.v)
	return []*Volume{e.v}
}
