package spec

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm/ondisk"
)

// A volume's identity as LVM tags, one per field: short, since the group's metadata area has them,
// and readable with `lvs -o +tags`. TagMarker identifies Carve's volumes and this format. A version
// that adds a field which earlier ones may ignore keeps the marker, since they skip unknown tags.
// One whose tags they would misread changes it, see LaterMarker.
const (
	tagPrefix = "carve."
	// TagMarker is on every volume of Carve.
	TagMarker    = "carve.v1"
	tagName      = "carve.name="
	tagClass     = "carve.class="
	tagMode      = "carve.mode="
	tagFS        = "carve.fs="  // TYPE:UUID
	tagRequest   = "carve.req=" // REQUIRED:LIMIT, and ":default" when no class was named
	tagCluster   = "carve.cluster="
	tagNamespace = "carve.ns="
	tagClaim     = "carve.claim="
	tagClaimUID  = "carve.uid="
	tagPodNS     = "carve.podns="
	tagPod       = "carve.pod="
	tagPodUID    = "carve.poduid="
	tagDAX       = "carve.dax"
	tagProfile   = "carve.profile="
	tagSettings  = "carve.mkfs="
	tagSource    = "carve.source="
	tagSnapshot  = "carve.snapshot"
	tagCrypt     = "carve.crypt=" // KIND, and ":discards" when those are let through
	// TagMaking is on a volume from its creation until it is handed out, or until shortly
	// afterwards if its contents show whether it is complete. Without it, the journal alone is no
	// reason to discard the contents.
	TagMaking = "carve.making"
	// TagCopying is on a copy instead of TagMaking. Versions before TagMaking know it, too.
	TagCopying = "carve.copying"
	// TagProvisional is on a provisional volume from its creation until shortly after the journal
	// has it as kept. Without it, no volume is deleted as provisional.
	TagProvisional = "carve.provisional"
	// TagDeleted is on deleted volumes before anything else happens to them.
	TagDeleted = "carve.deleted"
	// TagEncrypted is on a volume whose header was made: if that reads as zeroes, it is lost.
	TagEncrypted = "carve.encrypted"
	// TagExtension is on the logical volumes that hold the new extents of expansions.
	TagExtension = "carve.extension"

	// tagAdopted has the name of an adopted logical volume before.
	tagAdopted = "carve.from="

	modeBlock      = "block"
	modeFilesystem = "filesystem"
)

var marker = regexp.MustCompile(`^carve\.v[0-9]+$`)

// Tags encodes the identity.
func (i Identity) Tags() []string {
	t := []string{TagMarker, tagName + ondisk.EscapeTag(i.Name), tagClass + ondisk.EscapeTag(i.Class)}
	if i.Block {
		t = append(t, tagMode+modeBlock)
	} else {
		t = append(t, tagMode+modeFilesystem, tagFS+ondisk.EscapeTag(string(i.FSType)+":"+i.FSUUID))
	}
	request := fmt.Sprintf("%s%d:%d", tagRequest, i.Required, i.Limit)
	if i.DefaultClass {
		request += ":default"
	}
	t = append(t, request)
	if i.DAX {
		t = append(t, tagDAX)
	}
	if i.Encryption != "" {
		t = append(t, tagCrypt+i.encryptionTag())
	}
	if i.Profile != "" {
		t = append(t, tagProfile+ondisk.EscapeTag(string(i.Profile)))
	}
	if i.Settings != "" {
		t = append(t, tagSettings+ondisk.EscapeTag(string(i.Settings)))
	}
	if i.Source != "" {
		t = append(t, tagSource+ondisk.EscapeTag(i.Source))
	}
	if i.Snapshot {
		t = append(t, tagSnapshot)
	}
	for _, o := range []struct{ key, value string }{
		{tagCluster, i.Owner.Cluster}, {tagNamespace, i.Owner.Namespace},
		{tagClaim, i.Owner.Claim}, {tagClaimUID, i.Owner.ClaimUID},
		{tagPodNS, i.Owner.PodNamespace}, {tagPod, i.Owner.Pod}, {tagPodUID, i.Owner.PodUID},
	} {
		if o.value != "" {
			t = append(t, o.key+ondisk.EscapeTag(o.value))
		}
	}
	return t
}

func (i Identity) encryptionTag() string {
	if i.Discards {
		return i.Encryption + ":discards"
	}
	return i.Encryption
}

// AdoptedFromTag returns the tag with the former name of an adopted volume, until confirmation.
func AdoptedFromTag(name string) string { return tagAdopted + ondisk.EscapeTag(name) }

// AdoptedFrom decodes AdoptedFromTag; it returns "" without one.
func AdoptedFrom(tags []string) string {
	for _, t := range tags {
		if escaped, ok := strings.CutPrefix(t, tagAdopted); ok {
			if name, err := ondisk.UnescapeTag(escaped); err == nil {
				return name
			}
		}
	}
	return ""
}

// IsOurTag reports whether a tag has Carve's prefix.
func IsOurTag(tag string) bool { return strings.HasPrefix(tag, tagPrefix) }

// AreOurs reports whether tags are those of a volume of Carve, in this version's format.
func AreOurs(tags []string) bool {
	return slices.Contains(tags, TagMarker) && LaterMarker(tags) == ""
}

// MakingTag returns the tag of a volume that may never have been handed out, or "".
func MakingTag(tags []string) string {
	for _, t := range []string{TagMaking, TagCopying} {
		if slices.Contains(tags, t) {
			return t
		}
	}
	return ""
}

// LaterMarker returns a later version's marker, or "". This version cannot read the tags of such a
// volume, and neither uses nor removes it.
func LaterMarker(tags []string) string {
	for _, t := range tags {
		if t != TagMarker && marker.MatchString(t) {
			return t
		}
	}
	return ""
}

// FromTags reverses Tags, ignoring tags of an administrator.
func FromTags(tags []string) (Identity, error) {
	var i Identity
	var mode string
	for _, t := range tags {
		key, rest := t, ""
		if n := strings.IndexByte(t, '='); n >= 0 {
			key, rest = t[:n+1], t[n+1:]
		}
		value, err := ondisk.UnescapeTag(rest)
		if err != nil {
			return Identity{}, err
		}
		switch key {
		case tagName:
			i.Name = value
		case tagClass:
			i.Class = value
		case tagMode:
			mode = value
		case tagFS:
			fs, uuid, ok := strings.Cut(value, ":")
			if !ok {
				return Identity{}, fmt.Errorf("tag %q: no UUID", t)
			}
			i.FSType, i.FSUUID = filesystem.Type(fs), uuid
		case tagRequest:
			if err := i.parseRequest(value); err != nil {
				return Identity{}, fmt.Errorf("tag %q: %w", t, err)
			}
		case tagDAX:
			i.DAX = true
		case tagCrypt:
			kind, discards, _ := strings.Cut(value, ":")
			i.Encryption, i.Discards = kind, discards != ""
		case tagProfile:
			i.Profile = filesystem.Profile(value)
		case tagSettings:
			i.Settings = filesystem.Settings(value)
		case tagSource:
			i.Source = value
		case tagSnapshot:
			i.Snapshot = true
		case tagCluster:
			i.Owner.Cluster = value
		case tagNamespace:
			i.Owner.Namespace = value
		case tagClaim:
			i.Owner.Claim = value
		case tagClaimUID:
			i.Owner.ClaimUID = value
		case tagPodNS:
			i.Owner.PodNamespace = value
		case tagPod:
			i.Owner.Pod = value
		case tagPodUID:
			i.Owner.PodUID = value
		}
	}
	switch {
	case i.Name == "" || i.Class == "":
		return Identity{}, fmt.Errorf("the tags %q name no volume or no class", tags)
	case mode == modeBlock && i.FSType == "":
		i.Block = true
	case mode != modeFilesystem || i.FSType == "":
		return Identity{}, fmt.Errorf("the tags %q have no mode, or one that does not go with the file system", tags)
	}
	return i, nil
}

func (i *Identity) parseRequest(s string) error {
	parts := strings.Split(s, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return fmt.Errorf("want REQUIRED:LIMIT")
	}
	var err error
	if i.Required, err = strconv.ParseInt(parts[0], 10, 64); err != nil {
		return err
	}
	if i.Limit, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return err
	}
	i.DefaultClass = len(parts) == 3
	return nil
}
