-- The tables of single requests, for Spark SQL: what slowest.sql asks for beside tables.sql. The columns are those of the
-- first file that Spark opens.
CREATE OR REPLACE TEMPORARY VIEW chains USING parquet OPTIONS (path 'chains');
CREATE OR REPLACE TEMPORARY VIEW spans USING parquet OPTIONS (path 'spans');
