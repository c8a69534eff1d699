package volumegroup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/carve-csi/carve/api/conditions"
	"github.com/carve-csi/carve/pkg/lvm"
	"github.com/carve-csi/carve/pkg/lvmd/inventory"
	"github.com/carve-csi/carve/pkg/lvmd/journal"
)

// A volume group's name proves nothing: any disk may hold a group of any name. Its UUID proves
// little, as every user can read it. So a group is known by its UUID and those of its physical volumes,
// which the journal keeps from when the group was first seen, and with each that is added or taken
// away. Another group of the name, or one of the UUID on other disks, is not taken for it, and what
// the journal has of the group's volumes stays, unless one of these is true:
//
//   - The configuration lists the other group's UUID, and that is not the one which is known.
//   - lvmd starts, and the journal has no volume of the group, so that none can be lost. While it runs, the
//     group's disks may be away for a moment.
//   - The state directory has a file acceptPrefix + UUID, which an administrator made.
//
// lvmd itself makes a group in place of one that is known at a start only, too, unless there is
// a file replacePrefix + UUID: see Kept.

const (
	// acceptPrefix begins the name of a file that accepts another volume group.
	acceptPrefix = "accept-volume-group-"
	// replacePrefix begins the name of a file that has lvmd make a group in place of one that is lost.
	replacePrefix = "replace-volume-group-"
)

// Scan scans groups, and once more when another group of a name is accepted.
func (s *Groups) Scan(ctx context.Context, names []string) ([]lvm.Group, error) {
	found, err := s.LVM.Scan(ctx, names)
	if err != nil {
		return nil, err
	}
	s.NoteExcluded()
	again := false
	for _, name := range names {
		s.byName[name].implausible = inventory.Refusal{}
		if slices.ContainsFunc(found, func(g lvm.Group) bool { return g.Name == name }) {
			continue
		}
		accepted, err := s.acceptable(name, s.LVM.Others(name))
		if err != nil {
			return nil, err
		}
		if accepted == "" {
			continue
		}
		s.Log.Warn("another volume group of the same name is accepted", "group", name, "uuid", accepted)
		if err := s.Journal.PutIdentity(name, journal.Identity{UUID: accepted}); err != nil {
			return nil, err
		}
		s.LVM.Pin(name, lvm.Identity{UUID: accepted})
		again = true
	}
	if again {
		if found, err = s.LVM.Scan(ctx, names); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(found, func(f lvm.Group) bool { return !s.isPlausible(&f) }), nil
}

// isPlausible reports whether what was found of a group may be: one whose metadata went back, or in which
// all of several volumes are gone at once, is not, unless an administrator accepts it.
func (s *Groups) isPlausible(found *lvm.Group) bool {
	g, file := s.byName[found.Name], acceptFile(s.StateDir, found.UUID)
	if found.UUID != g.Known().Pinned.UUID {
		return true // It was accepted in place of another one, or lvmd makes it in its place.
	}
	why := g.Implausible(found)
	if why == (inventory.Refusal{}) {
		// It must not accept what happens later.
		_ = os.Remove(file)
		return true
	}
	if _, err := os.Stat(file); err == nil {
		s.Log.Warn("a volume group is accepted as it is", "group", found.Name, "uuid", found.UUID, "reason", why.Message, "physicalVolumes", why.Devices)
		return true
	}
	g.implausible = inventory.Refusal{Type: why.Type, Devices: why.Devices, Message: fmt.Sprintf("volume group %q on %s is not used: %s. Nothing is done to it, and no volume is forgotten. "+
		"Bring back the disks or the metadata (vgcfgrestore) that were there before; or, if what was done since is lost, run: touch %s",
		found.Name, strings.Join(pathsOf(found), " and "), why.Message, file)}
	return false
}

// pathsOf are those of the devices of a group that are there.
func pathsOf(g *lvm.Group) (paths []string) {
	for _, d := range g.Devices {
		if !d.Missing {
			paths = append(paths, d.Path)
		}
	}
	return paths
}

// NoteExcluded logs which devices were not looked at because of what they lie on, when these are
// others than before, and has a condition name those that show the UUID of a group.
func (s *Groups) NoteExcluded() {
	const most = 20
	excluded := s.LVM.Excluded()
	imitations := map[string][]string{}
	var described []string
	for _, e := range excluded {
		one := e.Path + ": " + e.Reason
		described = append(described, one)
		if e.Imitates != "" {
			imitations[e.Imitates] = append(imitations[e.Imitates], one)
		}
	}
	for name, g := range s.byName {
		inventory.SetImitations(g.Group, imitations[name])
	}
	all := strings.Join(described, "; ")
	if before := s.excluded.Swap(&all); all == "" || before != nil && *before == all {
		return
	}
	s.Log.Info("no volume group is looked for on devices that lie on volumes", "count", len(described), "devices", described[:min(most, len(described))])
}

// acceptable returns which of the groups of a name is to be taken for the one that is not
// found, or nothing.
func (s *Groups) acceptable(name string, groups []lvm.Other) (uuid string, err error) {
	if len(groups) == 0 {
		return "", nil
	}
	var others []string
	for _, g := range groups {
		if len(g.Duplicates) > 0 || g.Foreign != "" {
			return "", nil // There is nothing to accept: one of the devices must go, or what hides the group.
		}
		others = append(others, g.UUID)
	}
	known := s.byName[name].Known().Pinned.UUID
	listed := inventory.ListedUUIDs(s.Inventory.Config(), name)
	isListed := func(uuid string) bool { return slices.Contains(listed, uuid) }
	// What is listed for long says nothing of the disks that the UUID is on now.
	isNewlyListed := func(uuid string) bool { return isListed(uuid) && uuid != known }
	isAccepted := func(uuid string) bool {
		_, err := os.Stat(acceptFile(s.StateDir, uuid))
		return err == nil && (len(listed) == 0 || isListed(uuid))
	}
	for _, allowed := range []func(uuid string) bool{isAccepted, isNewlyListed} {
		if fit := slices.DeleteFunc(slices.Clone(others), func(o string) bool { return !allowed(o) }); len(fit) == 1 {
			return fit[0], nil
		}
	}
	if s.loaded || len(others) > 1 || len(listed) > 0 {
		return "", nil
	}
	if volumes, err := volumesOf(s.Journal, name); err != nil || volumes > 0 {
		return "", err
	}
	inventory.SetReplaced(s.byName[name].Group, fmt.Sprintf("volume group %q with the UUID %s was taken when lvmd started, in place of the one with the UUID %s, which had no volumes and was not there as it was. "+
		"If that is wrong, take it away or rename it, bring back the other one and restart lvmd", name, others[0], known))
	return others[0], nil
}

// volumesOf counts the volumes that the journal has of a group, those that are being deleted among
// them.
func volumesOf(j *journal.Journal, name string) (n int, err error) {
	records, err := j.Volumes()
	for _, r := range records {
		if r.Group == name {
			n++
		}
	}
	return n, err
}

// Kept says why lvmd makes no group in place of one that is not there, or nothing: volumes would be
// lost, or the group was there since lvmd started, so that its disks may be away for a moment only.
// givenUp is true when an administrator gave the group up.
func (s *Groups) Kept(g *Group) (why string, givenUp bool, err error) {
	known := g.Known()
	uuid := known.Pinned.UUID
	if uuid == "" {
		return "", false, nil
	}
	file := replaceFile(s.StateDir, uuid)
	if _, err := os.Stat(file); err == nil {
		return "", true, nil
	}
	volumes, err := volumesOf(s.Journal, g.Name())
	switch {
	case err != nil:
		return "", false, err
	case volumes > 0:
		why = fmt.Sprintf("volume group %q, with the UUID %s, has %d volumes and is away: bring its disks back; or, if they are lost, run: touch %s", g.Name(), uuid, volumes, file)
	case known.WasThere:
		why = fmt.Sprintf("volume group %q, with the UUID %s, was there since lvmd started: bring its disks back; or, if they are lost, restart lvmd, or run: touch %s", g.Name(), uuid, file)
	}
	return why, false, nil
}

// acceptFile is the file in the state directory with which an administrator accepts a group.
func acceptFile(stateDir, uuid string) string {
	return filepath.Join(stateDir, acceptPrefix+filepath.Base(uuid))
}

// replaceFile is the file in the state directory with which an administrator gives up a group.
func replaceFile(stateDir, uuid string) string {
	return filepath.Join(stateDir, replacePrefix+filepath.Base(uuid))
}

// Refusal says why a group is not used that is there, or others of its name are not taken for it.
func (s *Groups) Refusal(g *Group) inventory.Refusal {
	if g.implausible != (inventory.Refusal{}) {
		return g.implausible
	}
	others := s.LVM.Others(g.Name())
	if len(others) == 0 {
		return inventory.Refusal{}
	}
	if copied := others[0].Duplicates; len(copied) > 0 {
		var uuids []string
		for _, d := range copied {
			uuids = append(uuids, d.UUID)
		}
		return inventory.Refusal{Type: conditions.DuplicateDevice, Message: duplicated(g.Name(), copied), Devices: strings.Join(uuids, ", ")}
	}
	if why := others[0].Foreign; why != "" {
		return inventory.Refusal{Type: conditions.VolumeGroupForeign, Message: fmt.Sprintf(
			"volume group %q is on %s and is not used: LVM hides it, because it has %s. Nothing is done to it. If it is this node's, take that off; lvmd looks for it every minute",
			g.Name(), strings.Join(others[0].Paths, " and "), why)}
	}
	return inventory.Refusal{
		Type: conditions.VolumeGroupReplaced, Message: replaced(g, others, s.StateDir), Devices: strings.Join(g.Known().Pinned.Devices, ", "),
	}
}

// duplicated says why a group is not used of which physical volumes are on several devices.
func duplicated(name string, duplicates []lvm.Duplicate) string {
	var copied []string
	for _, d := range duplicates {
		copied = append(copied, "the same physical volume is on "+strings.Join(d.Paths, " and "))
	}
	return fmt.Sprintf("volume group %q is not used: %s: one is a copy of the other, or leads to the same disk, and which has the newest data cannot be known. "+
		"Nothing is done to either, and what is mounted goes on. Look whether both lead to one disk (lsblk -o +WWN,SERIAL): then run multipathd, or assemble the array that they are members of (mdadm). Else take the copy away, or overwrite it (wipefs)", name, strings.Join(copied, ", and "))
}

// replaced says why none of other groups of its name is taken for a group.
func replaced(g *Group, others []lvm.Other, stateDir string) string {
	name := g.Name()
	wanted := "no UUID of it is known yet, or is none of volumeGroupUUIDs"
	pinned := g.Known().Pinned
	if pinned.UUID != "" {
		wanted = "this node's has the UUID " + pinned.UUID
	}
	var found []string
	for _, o := range others {
		if o.UUID == pinned.UUID {
			return fmt.Sprintf("volume group %q is not used: the group with its UUID, %s, is on %s, and none of the disks that it was on is there with that metadata. "+
				"Nothing is done to it. Bring the node's own disks back, and take away what only looks like the group; or, if all of its disks were replaced "+
				"while lvmd did not run, run: touch %s",
				name, o.UUID, strings.Join(o.Paths, " and "), acceptFile(stateDir, o.UUID))
		}
		found = append(found, fmt.Sprintf("%s on %s", o.UUID, strings.Join(o.Paths, ", ")))
	}
	return fmt.Sprintf("volume group %q is not found: %s, and disks of this machine have another group of that name, with the UUID %s. "+
		"Nothing is done to either. Take away, or rename, what is not this node's; or, if it is to be used from now on, "+
		"and the volumes of the former group are lost, run: touch %s",
		name, wanted, strings.Join(found, " and "), acceptFile(stateDir, others[0].UUID))
}

// Unpin forgets which group there was: lvmd makes another in its place.
func (s *Groups) Unpin(g *Group) error {
	uuid := g.Known().Pinned.UUID
	if err := s.Journal.PutIdentity(g.Name(), journal.Identity{}); err != nil {
		return err
	}
	s.LVM.Pin(g.Name(), lvm.Identity{})
	if uuid != "" {
		_ = os.Remove(replaceFile(s.StateDir, uuid))
		inventory.SetReplaced(g.Group, fmt.Sprintf("volume group %q was made by lvmd in place of the one with the UUID %s, whose disks were not there", g.Name(), uuid))
	}
	return nil
}
