package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/carve-csi/carve/api/config"
	lvmdv1 "github.com/carve-csi/carve/api/lvmd/v1"
	"github.com/carve-csi/carve/pkg/lvmd"
)

const clientTimeout = 2 * time.Minute

type client struct {
	socket *string
	json   bool
}

func (c *client) commands() []*cobra.Command {
	return []*cobra.Command{
		c.classes(), c.volumes(), c.create(), c.delete(), c.expand(), c.snapshots(), c.snapshot(), c.deleteSnapshot(),
		c.adopt(), c.confirmAdoption(), c.revertAdoption(),
	}
}

func (c *client) call(ctx context.Context, f func(context.Context, lvmdv1.LVMDClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	conn, err := lvmd.Dial(*c.socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := f(ctx, lvmdv1.NewLVMDClient(conn)); err != nil {
		s := status.Convert(err)
		return fmt.Errorf("%s (%s)", s.Message(), s.Code())
	}
	return nil
}

func (c *client) classes() *cobra.Command {
	return &cobra.Command{
		Use: "classes", Short: "List the device classes and their free space", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				state, err := l.ListClasses(ctx, &lvmdv1.ListClassesRequest{})
				if err != nil {
					return err
				}
				rows := [][]string{{"CLASS", "GROUP", "TYPE", "MEDIUM", "TOTAL", "AVAILABLE", "CONDITIONS"}}
				messages := make([]proto.Message, 0, len(state.GetClasses()))
				for _, dc := range state.GetClasses() {
					name := dc.GetName()
					if dc.GetDefault() {
						name += " (default)"
					}
					messages = append(messages, dc)
					rows = append(rows, []string{name, dc.GetVgName(), dc.GetType(), dc.GetMedium(),
						bytesText(dc.GetTotalBytes()), bytesText(dc.GetAvailableBytes()), conditionsText(dc.GetConditions())})
				}
				return c.print(cmd.OutOrStdout(), messages, rows)
			})
		},
	}
}

func (c *client) volumes() *cobra.Command {
	return &cobra.Command{
		Use: "volumes", Short: "List the volumes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				var all []*lvmdv1.Volume
				for token := ""; ; {
					page, err := l.ListVolumes(ctx, &lvmdv1.ListVolumesRequest{PageSize: 500, PageToken: token})
					if err != nil {
						return err
					}
					all = append(all, page.GetVolumes()...)
					if token = page.GetNextPageToken(); token == "" {
						return c.printVolumes(cmd.OutOrStdout(), all...)
					}
				}
			})
		},
	}
}

func (c *client) create() *cobra.Command {
	r := &lvmdv1.CreateVolumeRequest{}
	var block bool
	var volume, snapshot string
	command := &cobra.Command{
		Use: "create NAME SIZE", Short: "Create a volume; SIZE is in bytes, with a suffix such as Gi or without", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := config.ParseBytes(args[1])
			if err != nil {
				return err
			}
			r.Name, r.RequiredBytes, r.Mode = args[0], size, lvmdv1.VolumeMode_VOLUME_MODE_FILESYSTEM
			if block {
				r.Mode = lvmdv1.VolumeMode_VOLUME_MODE_BLOCK
			}
			if volume != "" || snapshot != "" {
				r.Source = &lvmdv1.VolumeSource{VolumeId: volume, SnapshotId: snapshot}
			}
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.CreateVolume(ctx, r)
				if err != nil {
					return err
				}
				return c.printVolumes(cmd.OutOrStdout(), resp.GetVolume())
			})
		},
	}
	command.Flags().StringVar(&r.DeviceClass, "class", "", "device class; empty means the default")
	command.Flags().StringVar(&r.FsType, "fs-type", "", "btrfs, ext4 or xfs; empty means ext4")
	command.Flags().StringVar(&r.Profile, "profile", "", "scratch: ext4 that is fast, and empty after a crash; empty means that data outlive one")
	command.Flags().StringToStringVar(&r.FsSettings, "mkfs", nil, "how the file system is made, such as label=cache,block-size=1024")
	command.Flags().BoolVar(&block, "block", false, "make a raw volume without a file system")
	command.Flags().StringVar(&r.Encryption, "encryption", "", "ephemeral: encrypt it with a random key that ends with the volume, or with the machine's power; luks: leave space for a LUKS header, and the encryption to the user of the volume; empty means not to")
	command.Flags().BoolVar(&r.EncryptionDiscards, "encryption-discards", false, "let discards of an encrypted volume through to the disk")
	command.Flags().StringVar(&volume, "from-volume", "", "make it a copy of the volume with this id")
	command.Flags().StringVar(&snapshot, "from-snapshot", "", "restore the snapshot with this id")
	command.MarkFlagsMutuallyExclusive("from-volume", "from-snapshot")
	return command
}

func (c *client) delete() *cobra.Command {
	return &cobra.Command{
		Use: "delete ID", Short: "Delete a volume by its id, with all it holds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				// Deleting a missing volume succeeds, which would hide a mistyped id.
				if _, err := l.GetVolume(ctx, &lvmdv1.GetVolumeRequest{Id: args[0]}); err != nil {
					return err
				}
				_, err := l.DeleteVolume(ctx, &lvmdv1.DeleteVolumeRequest{Id: args[0]})
				return err
			})
		},
	}
}

func (c *client) expand() *cobra.Command {
	return &cobra.Command{
		Use: "expand ID SIZE", Short: "Grow a volume, but not the file system in it, to SIZE", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := config.ParseBytes(args[1])
			if err != nil {
				return err
			}
			return c.call(cmd.Context(), func(ctx context.Context, l lvmdv1.LVMDClient) error {
				resp, err := l.ExpandVolume(ctx, &lvmdv1.ExpandVolumeRequest{Id: args[0], RequiredBytes: size})
				if err != nil {
					return err
				}
				return c.printVolumes(cmd.OutOrStdout(), resp.GetVolume())
			})
		},
	}
}

func (c *client) printVolumes(w io.Writer, volumes ...*lvmdv1.Volume) error {
	rows := [][]string{{"ID", "NAME", "CLASS", "SIZE", "HOLDS", "STATE", "CLAIM", "CONDITIONS"}}
	messages := make([]proto.Message, 0, len(volumes))
	for _, v := range volumes {
		holds := v.GetFsType()
		if holds == "" {
			holds = "raw"
		}
		claim := ""
		if o := v.GetOwner(); o.GetClaimName() != "" {
			claim = o.GetClaimNamespace() + "/" + o.GetClaimName()
		} else if o.GetPodUid() != "" {
			claim = "Pod " + o.GetPodNamespace() + "/" + o.GetPodName()
		}
		messages = append(messages, v)
		rows = append(rows, []string{v.GetId(), v.GetName(), v.GetDeviceClass(), bytesText(v.GetSizeBytes()), holds,
			strings.ToLower(strings.TrimPrefix(v.GetState().String(), "VOLUME_STATE_")), claim, conditionsText(slices.Concat(v.GetConditions(), v.GetFound()))})
	}
	return c.print(w, messages, rows)
}

func (c *client) print(w io.Writer, messages []proto.Message, rows [][]string) error {
	if c.json {
		for _, m := range messages {
			b, err := protojson.Marshal(m)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\n", b)
		}
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(table, strings.TrimRight(strings.Join(r, "\t"), "\t"))
	}
	return table.Flush()
}

// bytesText uses the largest binary suffix that keeps a whole number.
func bytesText(n int64) string {
	suffixes := []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	i := 0
	for n != 0 && n%1024 == 0 && i < len(suffixes)-1 {
		n /= 1024
		i++
	}
	return fmt.Sprintf("%d%s", n, suffixes[i])
}

func conditionsText(conditions []*lvmdv1.Condition) string {
	types := make([]string, len(conditions))
	for i, c := range conditions {
		types[i] = c.GetType()
	}
	return strings.Join(types, ",")
}
