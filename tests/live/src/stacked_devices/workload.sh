# What the recorded devices do. Nothing else uses them meanwhile; they are at rest before and after.
. /tmp/devices
cut -d' ' -f1 /proc/uptime > /tmp/begun

. /opt/nestrace/quiet.sh
. /opt/nestrace/in_folder.sh

look > /tmp/before
for name in linear mirror stripe raid0 pieces; do
  in_folder /mnt/$name
done
settle
look > /tmp/after
