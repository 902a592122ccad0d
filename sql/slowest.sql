-- The slowest requests, and what each layer did for them: the trees of the ten guest bios that waited longest.
WITH slowest AS (
    SELECT host, recording, guest, guest_device, io, q2c_ns
    FROM chains
    ORDER BY q2c_ns DESC, host, recording, guest, guest_device, io
    LIMIT 10
)
SELECT host, recording, guest, guest_device, io, q2c_ns, span, parent, layer, what, place, from_ns, to_ns - from_ns AS ns
FROM slowest JOIN spans USING (host, recording, guest, guest_device, io)
ORDER BY q2c_ns DESC, host, recording, guest, guest_device, io, span;
