package lvmd

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/carve-csi/carve/api/names"
	"github.com/carve-csi/carve/pkg/filesystem"
	"github.com/carve-csi/carve/pkg/lvm"
)

// A volume's identity as LVM tags, one per field, short because they live in
// the group's metadata area, and readable with `lvs -o +tags`. tagMarker says
// that the volume is Carve's and that the others are in this form.
const (
	tagMarker    = "carve.v1"
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
	// tagCopying is on a volume until all of its source is copied.
	tagCopying = "carve.copying"
	// tagDeleted is on what is deleted, from before anything is done to it.
	tagDeleted = "carve.deleted"
	// tagExtension is on the logical volumes that hold what volumes are growing by.
	tagExtension = "carve.extension"

	modeBlock      = "block"
	modeFilesystem = "filesystem"
)

// tags encodes an identity.
func (i identity) tags() []string {
	t := []string{tagMarker, tagName + lvm.EscapeTag(i.Name), tagClass + lvm.EscapeTag(i.Class)}
	if i.Block {
		t = append(t, tagMode+modeBlock)
	} else {
		t = append(t, tagMode+modeFilesystem, tagFS+lvm.EscapeTag(string(i.FSType)+":"+i.FSUUID))
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
		t = append(t, tagProfile+lvm.EscapeTag(string(i.Profile)))
	}
	if i.Settings != "" {
		t = append(t, tagSettings+lvm.EscapeTag(string(i.Settings)))
	}
	if i.Source != "" {
		t = append(t, tagSource+lvm.EscapeTag(i.Source))
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
			t = append(t, o.key+lvm.EscapeTag(o.value))
		}
	}
	return t
}

func (i identity) encryptionTag() string {
	if i.Discards {
		return i.Encryption + ":discards"
	}
	return i.Encryption
}

// tellEncrypted tells whether tags are those of a volume that lvmd encrypts.
func tellEncrypted(tags []string) bool {
	return slices.ContainsFunc(tags, func(t string) bool { return strings.HasPrefix(t, tagCrypt+names.EncryptionEphemeral) })
}

// isOurs tells whether tags mark a volume as Carve's.
func isOurs(tags []string) bool {
	for _, t := range tags {
		if t == tagMarker {
			return true
		}
	}
	return false
}

// identityFromTags decodes what tags made. Tags that an administrator added
// are skipped.
func identityFromTags(tags []string) (identity, error) {
	var i identity
	var mode string
	for _, t := range tags {
		key, rest := t, ""
		if n := strings.IndexByte(t, '='); n >= 0 {
			key, rest = t[:n+1], t[n+1:]
		}
		value, err := lvm.UnescapeTag(rest)
		if err != nil {
			return identity{}, err
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
				return identity{}, fmt.Errorf("tag %q: no UUID", t)
			}
			i.FSType, i.FSUUID = filesystem.Type(fs), uuid
		case tagRequest:
			if err := i.parseRequest(value); err != nil {
				return identity{}, fmt.Errorf("tag %q: %w", t, err)
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
		return identity{}, fmt.Errorf("the tags %q name no volume or no class", tags)
	case mode == modeBlock && i.FSType == "":
		i.Block = true
	case mode != modeFilesystem || i.FSType == "":
		return identity{}, fmt.Errorf("the tags %q have no mode, or one that does not go with the file system", tags)
	}
	return i, nil
}

func (i *identity) parseRequest(s string) error {
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
