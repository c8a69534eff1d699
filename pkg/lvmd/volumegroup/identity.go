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

// A volume group's name proves nothing: any disk may hold a group of that name. Its UUID proves
// little, since every user can read it. Therefore the journal keeps the UUIDs of the group and of
// its physical volumes, from the first scan on, and updates them when disks are added or removed.
// lvmd does not use another group of the name, or one of the UUID on other disks, and keeps the
// journal's volumes, except in these cases:
//
//   - The configuration lists the other group's UUID, which is not the pinned one.
//   - lvmd starts, and the journal has no volume of the group that could be lost. Later, the group's
//     disks may be away for a moment only.
//   - The state directory has a file acceptPrefix + UUID, from an administrator.
//
// Likewise, lvmd makes a new group in place of a known one only at a start, or if the state directory
// has a file replacePrefix + UUID, see Kept.

const (
	// acceptPrefix begins the name of a file that accepts another volume group.
	acceptPrefix = "accept-volume-group-"
	// replacePrefix begins the name of a file that lets lvmd replace a lost group by a new one.
	replacePrefix = "replace-volume-group-"
)

// Scan scans groups, and rescans them if it accepts another group of a name.
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

// isPlausible rejects older metadata, and the loss of all of several volumes, unless an
// administrator accepted it.
func (s *Groups) isPlausible(found *lvm.Group) bool {
	g, file := s.byName[found.Name], acceptFile(s.StateDir, found.UUID)
	if found.UUID != g.Known().Pinned.UUID {
		return true // It was accepted, or made, in place of another one.
	}
	why := g.Implausible(found)
	if why == (inventory.Refusal{}) {
		// The file must not accept later problems.
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

func pathsOf(g *lvm.Group) (paths []string) {
	for _, d := range g.Devices {
		if !d.Missing {
			paths = append(paths, d.Path)
		}
	}
	return paths
}

// NoteExcluded logs the devices that no scan reads because of what they lie on, when these changed.
// Conditions report those that show the UUID of a group.
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

// acceptable returns the UUID of the group to use in place of the missing one, or "".
func (s *Groups) acceptable(name string, groups []lvm.Other) (uuid string, err error) {
	if len(groups) == 0 {
		return "", nil
	}
	var others []string
	for _, g := range groups {
		if len(g.Duplicates) > 0 || g.Foreign != "" {
			return "", nil // Accepting does not help: a device must go, or what hides the group.
		}
		others = append(others, g.UUID)
	}
	known := s.byName[name].Known().Pinned.UUID
	listed := inventory.ListedUUIDs(s.Inventory.Config(), name)
	isListed := func(uuid string) bool { return slices.Contains(listed, uuid) }
	// An entry that was listed before says nothing of the disks that show the UUID now.
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

// volumesOf counts the journal's volumes of a group, tombstones included.
func volumesOf(j *journal.Journal, name string) (n int, err error) {
	records, err := j.Volumes()
	for _, r := range records {
		if r.Group == name {
			n++
		}
	}
	return n, err
}

// Kept returns why lvmd must not make another group in place of a missing one, or "": volumes would
// be lost, or the group was there in this run of lvmd, and its disks may be away for a moment only.
// givenUp is true if an administrator gave the group up.
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

func acceptFile(stateDir, uuid string) string {
	return filepath.Join(stateDir, acceptPrefix+filepath.Base(uuid))
}

func replaceFile(stateDir, uuid string) string {
	return filepath.Join(stateDir, replacePrefix+filepath.Base(uuid))
}

// Refusal says why an existing group, or others of its name, are not used.
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

func duplicated(name string, duplicates []lvm.Duplicate) string {
	var copied []string
	for _, d := range duplicates {
		copied = append(copied, "the same physical volume is on "+strings.Join(d.Paths, " and "))
	}
	return fmt.Sprintf("volume group %q is not used: %s: one is a copy of the other, or leads to the same disk, and which has the newest data cannot be known. "+
		"Nothing is done to either, and what is mounted goes on. Look whether both lead to one disk (lsblk -o +WWN,SERIAL): then run multipathd, or assemble the array that they are members of (mdadm). Else take the copy away, or overwrite it (wipefs)", name, strings.Join(copied, ", and "))
}

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

// Unpin forgets the group's identity, and lvmd makes another group in its place.
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
